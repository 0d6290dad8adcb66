/* Reads the kernel's list of rdma devices. Room: transport; see cm_server.h. It opens no device. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "cleanup.h"
#include "cm_server.h"

#define DEVICES_FOLDER "/sys/class/infiniband"

/* The word after the number in a file like "4: ACTIVE". */
static void read_word(const char *device, const char *file, char *ret_word, size_t size)
{
	char path[128], line[64] = "";
	fp_autofclose FILE *f = NULL;

	snprintf(path, sizeof(path), DEVICES_FOLDER "/%.63s/%s", device, file);
	f = fopen(path, "re");
	if (!f || !fgets(line, sizeof(line), f) || sscanf(line, "%*d: %15s", ret_word) != 1)
		snprintf(ret_word, size, "?");
}

unsigned fp_rdma_devices(struct fp_rdma_device *ret_devices, unsigned max)
{
	DIR *dir = opendir(DEVICES_FOLDER);
	struct dirent *entry;
	unsigned n = 0;

	while (dir && n < max && (entry = readdir(dir))) {
		struct fp_rdma_device *device = &ret_devices[n];
		char type[16];

		if (entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof(device->name))
			continue;
		strcpy(device->name, entry->d_name);
		read_word(device->name, "ports/1/state", device->state, sizeof(device->state));
		read_word(device->name, "node_type", type, sizeof(type));
		device->iwarp = strcmp(type, "RNIC") == 0;
		n++;
	}
	if (dir)
		closedir(dir);
	return n;
}
