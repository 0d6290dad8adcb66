/*
 * Fuzz target: any bytes as a configuration file. Built alone, the target replays a corpus
 * (replay.c); with clang -fsanitize=fuzzer it finds new inputs.
 */
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "fuzz.h"
#include "yamlconf.h"

struct conf {
	bool flag;
	uint64_t number, size, time;
	char *text;
	int choice;
	struct fp_conf_strings texts;
	struct conf *items; /* elements of the mapping and of the list below */
	size_t n_items;
};

static void *add_item(void *enclosing)
{
	struct conf *conf = enclosing;
	struct conf *items = reallocarray(conf->items, conf->n_items + 1, sizeof(*items));

	if (!items)
		return NULL;
	conf->items = items;
	items[conf->n_items] = (struct conf){0};
	return &items[conf->n_items++];
}

static const char *const choices[] = {"thread", "inline", NULL};

static const struct fp_conf_field item_fields[] = {
    {.key = "x", .type = FP_CONF_STRING, .offset = offsetof(struct conf, text), .required = true},
    {.key = "xs", .type = FP_CONF_STRINGS, .offset = offsetof(struct conf, texts)},
    {0},
};

static const struct fp_conf_field fields[] = {
    {.key = "f", .type = FP_CONF_BOOL, .offset = offsetof(struct conf, flag)},
    {.key = "n", .type = FP_CONF_U64, .offset = offsetof(struct conf, number), .min = 1, .max = 65535},
    {.key = "s", .type = FP_CONF_SIZE, .offset = offsetof(struct conf, size), .min = 4096},
    {.key = "t", .type = FP_CONF_TIME, .offset = offsetof(struct conf, time)},
    {.key = "c", .type = FP_CONF_ENUM, .offset = offsetof(struct conf, choice), .choices = choices},
    {.key = "x", .type = FP_CONF_STRING, .offset = offsetof(struct conf, text)},
    {.key = "xs", .type = FP_CONF_STRINGS, .offset = offsetof(struct conf, texts)},
    {.key = "m", .type = FP_CONF_MAP, .fields = item_fields, .item = add_item},
    {.key = "l", .type = FP_CONF_LIST, .fields = item_fields, .item = add_item},
    {0},
};

static void conf_done(struct conf *conf)
{
	for (size_t i = 0; i < conf->n_items; i++)
		conf_done(&conf->items[i]);
	free(conf->items);
	free(conf->text);
	fp_conf_strings_done(&conf->texts);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	fp_autoclose int fd = memfd_create("conf", MFD_CLOEXEC);
	struct fp_conf_places places = {.n = 0};
	struct fp_conf_error error;
	struct conf conf = {0};
	char path[32];
	int r;

	if (fd < 0 || write(fd, bytes, len) != (ssize_t)len)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	r = fp_conf_read(path, fields, &conf, &places, &error);
	assert(r == 0 || r == -EINVAL || r == -EFBIG);
	assert(memchr(error.text, '\0', sizeof(error.text)));
	assert((r == 0) == (error.text[0] == '\0') && !strchr(error.text, '\n'));
	fp_conf_places_done(&places);
	conf_done(&conf);
	return 0;
}
