/* SPDX-License-Identifier: Apache-2.0 */
/* What the small clients share. */
#ifndef NVSIM_CLIENT_H
#define NVSIM_CLIENT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cuda.h"

/* End with status 1 and the call's name if it failed. */
static inline void must(CUresult result, const char *program, const char *call)
{
	const char *text = NULL;

	if (result == CUDA_SUCCESS)
		return;
	cuGetErrorString(result, &text);
	fprintf(stderr, "%s: %s: error %d (%s)\n", program, call, result, text ? text : "?");
	exit(1);
}

static inline double now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

#endif
