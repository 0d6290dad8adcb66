/*
 * The shared secret of a node, from a file. Room: common.
 */
#include "secret.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"

int fp_secret_read(const char *path, char **ret_secret)
{
	fp_autofclose FILE *file = fopen(path, "re");
	char line[FP_SECRET_MAX_BYTES + 2];
	int r = 0;

	if (!file)
		return -errno;
	errno = 0;
	if (!fgets(line, sizeof(line), file))
		return errno ? -errno : -ENODATA;
	line[strcspn(line, "\r\n")] = '\0';
	if (!line[0])
		r = -ENODATA;
	else if (strlen(line) > FP_SECRET_MAX_BYTES)
		r = -EMSGSIZE;
	else if (!(*ret_secret = strdup(line)))
		r = -ENOMEM;
	explicit_bzero(line, sizeof(line));
	return r;
}

void fp_secret_free(char *secret)
{
	if (secret)
		explicit_bzero(secret, strlen(secret));
	free(secret);
}
