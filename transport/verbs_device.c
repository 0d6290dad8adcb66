/*
 * The devices that this process has open, and how it closes them. Room: transport; see
 * verbs_internal.h.
 *
 * The kernel's removal of a soft device (rdma link delete) waits until every program has closed it.
 * librdmacm never closes a device that it opened. So we must notice that a device is being removed.
 * We close it once none of our objects uses it. We notice a removal in two ways:
 *
 *   - rdma_cm sends an event to each connection and listener that is bound to the device. Then the
 *     receiver of the event calls fp_verbs_device_gone.
 *   - The kernel no longer lists the device: fp_verbs_devices_check looks from time to time.
 *
 * The first way is not enough. A connection gets no more events once its peer has ended. And two
 * things are bound to no device: a listener on all addresses, and a queue pair connected without
 * rdma_cm.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fdutil.h"
#include "verbs_internal.h"

static struct fp_verbs_device *devices;
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list */

void fp_verbs_set_nonblocking(int fd)
{
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/*
 * Notes where the kernel lists the device, because another device may get the same name later.
 * Notes nothing if that can't be read.
 */
static void note_place(struct fp_verbs_device *device)
{
	const struct ibv_device *of = device->context->device;
	struct stat place;

	snprintf(device->place, sizeof(device->place), "%s", of->dev_path);
	device->listed = stat(device->place, &place) == 0;
	if (device->listed)
		device->place_ino = place.st_ino;
	if (fstat(device->context->cmd_fd, &place) == 0)
		device->rdev = place.st_rdev;
}

static int device_new(struct ibv_context *context, struct fp_verbs_device **ret_device)
{
	fp_autofree struct fp_verbs_device *device = calloc(1, sizeof(*device));
	struct ibv_device_attr attr;
	bool locked;

	if (!device)
		return -ENOMEM;
	if (fp_verbs_api->ibv.query_device(context, &attr))
		return -EIO;
	device->context = context;
	device->n_asks = (unsigned)FP_MIN(FP_MAX(attr.max_qp_init_rd_atom, 1), FP_VERBS_MAX_READS);
	device->n_answers = (unsigned)FP_MIN(FP_MAX(attr.max_qp_rd_atom, 1), FP_VERBS_MAX_READS);
	device->limits.max_reads = FP_MIN(device->n_asks, device->n_answers);
	device->limits.iwarp = context->device->transport_type == IBV_TRANSPORT_IWARP;
	snprintf(device->limits.device, sizeof(device->limits.device), "%s",
	         fp_verbs_api->ibv.get_device_name(context->device));
	locked = fp_fd_lock_exclusive();
	context->cmd_fd = fp_fd_move_high(context->cmd_fd);
	context->async_fd = fp_fd_move_high(context->async_fd);
	fp_fd_unlock(locked);
	fp_verbs_set_nonblocking(context->async_fd);
	device->cmd_fd = context->cmd_fd;
	device->async_fd = context->async_fd;
	note_place(device);
	*ret_device = fp_take_ptr(device);
	return 0;
}

/*
 * librdmacm may already have closed a device that is gone. Then its descriptor numbers may belong
 * to other files.
 */
static bool has_descriptors(const struct fp_verbs_device *device)
{
	struct stat now;

	return fstat(device->cmd_fd, &now) == 0 && S_ISCHR(now.st_mode) && now.st_rdev == device->rdev;
}

/*
 * librdmacm keeps its contexts, and closes them when it likes. So we close the device, but keep the
 * descriptor numbers open on /dev/null for librdmacm to close. Call it with devices_lock held.
 */
static void device_retire(struct fp_verbs_device *device)
{
	int null_fd = has_descriptors(device) ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
	struct fp_verbs_device **at = &devices;

	if (null_fd >= 0) {
		dup3(null_fd, device->cmd_fd, O_CLOEXEC);
		dup3(null_fd, device->async_fd, O_CLOEXEC);
		close(null_fd);
	}
	while (*at != device)
		at = &(*at)->next;
	*at = device->next;
	free(device);
}

/* Marks a device dead, and closes it if it has no domain. Call it with devices_lock held. */
static void device_goes(struct fp_verbs_device *device)
{
	device->dead = true;
	if (device->n_domains == 0)
		device_retire(device);
}

int fp_verbs_device_get(struct ibv_context *context, struct fp_verbs_device **ret_device)
{
	struct fp_verbs_device *device;
	int r = 0;

	pthread_mutex_lock(&devices_lock);
	for (device = devices; device && device->context != context; device = device->next)
		;
	if (!device) {
		r = device_new(context, &device);
		if (r == 0) {
			device->next = devices;
			devices = device;
		}
	}
	if (r == 0 && device->dead)
		r = -ENODEV;
	if (r == 0)
		device->n_domains++;
	pthread_mutex_unlock(&devices_lock);
	*ret_device = device;
	return r;
}

void fp_verbs_device_put(struct fp_verbs_device *device)
{
	pthread_mutex_lock(&devices_lock);
	if (--device->n_domains == 0 && device->dead)
		device_retire(device);
	pthread_mutex_unlock(&devices_lock);
}

void fp_verbs_device_note(struct ibv_context *context)
{
	struct fp_verbs_device *device;

	if (fp_verbs_device_get(context, &device) == 0)
		fp_verbs_device_put(device);
}

bool fp_verbs_device_is_open(const char *name, struct ibv_context **ret_context)
{
	struct fp_verbs_device *device;

	pthread_mutex_lock(&devices_lock);
	for (device = devices; device; device = device->next)
		if (!device->dead && !strcmp(device->limits.device, name))
			break;
	*ret_context = device ? device->context : NULL;
	pthread_mutex_unlock(&devices_lock);
	return *ret_context;
}

void fp_verbs_devices_drop(void)
{
	for (struct fp_verbs_device *device = devices; device; device = device->next) {
		fp_verbs_drop_descriptor(device->cmd_fd);
		fp_verbs_drop_descriptor(device->async_fd);
	}
	devices = NULL;
	pthread_mutex_init(&devices_lock, NULL); /* a thread of the parent may hold it */
}

/* ---- devices that go ---- */

void fp_verbs_device_gone(const struct ibv_context *context)
{
	struct fp_verbs_device *device;

	pthread_mutex_lock(&devices_lock);
	for (device = devices; device && device->context != context; device = device->next)
		;
	if (device)
		device_goes(device);
	pthread_mutex_unlock(&devices_lock);
}

static bool is_unlisted(const struct fp_verbs_device *device)
{
	struct stat place;

	return device->listed && (stat(device->place, &place) < 0 || place.st_ino != device->place_ino);
}

void fp_verbs_devices_check(void)
{
	pthread_mutex_lock(&devices_lock);
	for (struct fp_verbs_device *device = devices, *next; device; device = next) {
		next = device->next;
		if (is_unlisted(device))
			device_goes(device);
	}
	pthread_mutex_unlock(&devices_lock);
}
