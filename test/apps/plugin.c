/*
 * A library that `shapes libraries` loads and unloads. It has its own memory while it is loaded,
 * and does not free all of it. Room: test/apps.
 */
#include <string.h>

#include "bytes.h"

#define OWN_BYTES (1u * MIB)

static char *own, own_data[64u << 10];
static __thread char own_thread[4096] = "as it was made";

void *plugin_make(size_t len, uint64_t seed);

__attribute__((constructor)) static void begin(void)
{
	own = map_bytes(OWN_BYTES);
	fill(own, OWN_BYTES, 1);
	fill(own_data, sizeof(own_data), 2);
}

__attribute__((destructor)) static void end(void)
{
	verify(own, OWN_BYTES, 1, "a library's memory");
	verify(own_data, sizeof(own_data), 2, "a library's data");
	munmap(own, OWN_BYTES);
}

__attribute__((visibility("default"))) void *plugin_make(size_t len, uint64_t seed)
{
	void *made = malloc(len);

	if (made && strcmp(own_thread, "as it was made") == 0)
		fill(made, len, seed);
	return made;
}
