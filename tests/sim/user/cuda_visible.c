// SPDX-License-Identifier: Apache-2.0
/*
 * CUDA: which GPUs this process sees. NVIDIA_VISIBLE_DEVICES picks from the
 * machine's (by minor or UUID), then CUDA_VISIBLE_DEVICES from those (by
 * position or UUID), and orders them.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cuda.h"

static bool uuid_matches(const struct cuda_gpu *gpu, const char *word)
{
	char text[RM_UUID_TEXT];

	/* A UUID may be cut short, as long as it is not only the prefix. */
	if (strlen(word) <= 4)
		return false;
	rm_uuid_text(gpu->rm.info.uuid, text);
	return !strncasecmp(text, word, strlen(word));
}

static bool number(const char *word, unsigned long *value)
{
	char *end;

	*value = strtoul(word, &end, 10);
	return *word && !*end;
}

static bool matches(const struct cuda_gpu *gpu, unsigned long position, const char *word)
{
	unsigned long value;

	return number(word, &value) ? value == position : uuid_matches(gpu, word);
}

static void swap(struct cuda_gpu *a, struct cuda_gpu *b)
{
	struct cuda_gpu held = *a;

	*a = *b;
	*b = held;
}

/* Move what machine-wide visibility leaves to the front, its order kept. */
static unsigned int keep_allowed(struct cuda_gpu *gpus, unsigned int count, const char *setting)
{
	char *copy, *rest, *word;
	unsigned int i, kept = 0;
	bool found;

	if (!setting || !*setting || !strcmp(setting, "all"))
		return count;
	if (!strcmp(setting, "none") || !strcmp(setting, "void"))
		return 0;
	for (i = 0; i < count; i++) {
		found = false;
		copy = rest = strdup(setting);
		while (!found && (word = strsep(&rest, ",")))
			found = matches(&gpus[i], gpus[i].rm.info.minor, word);
		free(copy);
		if (found)
			swap(&gpus[kept++], &gpus[i]);
	}
	return kept;
}

/* Put the GPUs that are named to the front, in that order; the first unknown name ends the list. */
static unsigned int keep_named(struct cuda_gpu *gpus, unsigned int count, const char *setting)
{
	struct cuda_gpu before[RM_MAX_CARDS];
	bool used[RM_MAX_CARDS] = { false };
	char *copy, *rest, *word;
	unsigned int i, behind, kept = 0;

	if (!setting)
		return count;
	memcpy(before, gpus, count * sizeof(*gpus));
	copy = rest = strdup(setting);
	while ((word = strsep(&rest, ","))) {
		for (i = 0; i < count && (used[i] || !matches(&before[i], i, word)); i++)
			;
		if (i == count)
			break;
		used[i] = true;
		gpus[kept++] = before[i];
	}
	free(copy);
	for (i = 0, behind = kept; i < count; i++)
		if (!used[i])
			gpus[behind++] = before[i]; /* so that they can be closed */
	return kept;
}

unsigned int cuda_visible(struct cuda_gpu *gpus, unsigned int count)
{
	count = keep_allowed(gpus, count, getenv("NVIDIA_VISIBLE_DEVICES"));
	return keep_named(gpus, count, getenv("CUDA_VISIBLE_DEVICES"));
}
