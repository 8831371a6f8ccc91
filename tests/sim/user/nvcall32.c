// SPDX-License-Identifier: Apache-2.0
/*
 * nvcall32 PATH CMD CALLS: the same ioctl from a 32-bit process, so that the
 * driver's compat entry is taken. The argument is a zeroed buffer. Prints one
 * result a line (negative: an errno); exit status 1 if one was negative, 2 if
 * PATH cannot be opened. It needs no 32-bit C library, as Debian's amd64 has none.
 */

#define SYS_EXIT 1
#define SYS_WRITE 4
#define SYS_OPEN 5
#define SYS_IOCTL 54
#define READ_WRITE 2

static int syscall3(int number, long a, long b, long c)
{
	int result;

	__asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
	return result;
}

static unsigned int parse(const char *text)
{
	unsigned int base = 10, value = 0, digit;

	if (text[0] == '0' && text[1] == 'x') {
		base = 16;
		text += 2;
	}
	for (; *text; text++) {
		digit = *text >= 'a' ? *text - 'a' + 10u : *text - '0' + 0u;
		value = value * base + digit;
	}
	return value;
}

static void print(int value)
{
	unsigned int rest = value < 0 ? -(unsigned int)value : (unsigned int)value;
	char text[16];
	int at = sizeof(text);

	text[--at] = '\n';
	do {
		text[--at] = '0' + rest % 10;
		rest /= 10;
	} while (rest);
	if (value < 0)
		text[--at] = '-';
	syscall3(SYS_WRITE, 1, (long)&text[at], sizeof(text) - at);
}

static int run(int argc, char **argv)
{
	static unsigned long long buffer[128];
	unsigned int calls, i;
	int fd, result, status = 0;

	if (argc != 4)
		return 2;
	fd = syscall3(SYS_OPEN, (long)argv[1], READ_WRITE, 0);
	if (fd < 0)
		return 2;
	for (i = 0, calls = parse(argv[3]); i < calls; i++) {
		result = syscall3(SYS_IOCTL, fd, parse(argv[2]), (long)buffer);
		print(result);
		if (result < 0)
			status = 1;
	}
	return status;
}

/* The kernel leaves argc and argv on the stack. */
__attribute__((used, noreturn)) static void begin(long *stack)
{
	syscall3(SYS_EXIT, run(stack[0], (char **)&stack[1]), 0, 0);
	__builtin_unreachable();
}

__asm__(".globl _start\n_start:\n\tmovl %esp, %eax\n\tpushl %eax\n\tcall begin\n");
