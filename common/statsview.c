/* See statsview.h. */
#include "statsview.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"

#define HEADER_BYTES (offsetof(struct fp_statspage, size_bytes) + sizeof(uint32_t))

/* True if all texts of the page end with NUL: readers print them as they are. */
static bool texts_end(const struct fp_statspage *page)
{
	bool end = memchr(page->command, '\0', sizeof(page->command)) &&
	           memchr(page->fault_mode, '\0', sizeof(page->fault_mode)) &&
	           memchr(page->capture, '\0', sizeof(page->capture));

	for (unsigned i = 0; i < FP_STATSPAGE_NODES; i++)
		end = end && memchr(page->node[i].url, '\0', sizeof(page->node[i].url)) &&
		      memchr(page->node[i].way, '\0', sizeof(page->node[i].way));
	return end;
}

/* Until the version is known, trusts only the fields that every version has. */
static int copy(int fd, struct fp_statspage *ret_page)
{
	ssize_t len = pread(fd, ret_page, sizeof(*ret_page), 0);

	if (len < 0)
		return errno == EISDIR || errno == ESPIPE ? -EINVAL : -errno;
	if (len < (ssize_t)HEADER_BYTES || ret_page->magic != FP_STATSPAGE_MAGIC)
		return -EINVAL;
	if (ret_page->version != FP_STATSPAGE_VERSION || ret_page->size_bytes != sizeof(*ret_page))
		return -EPROTO;
	if (len < (ssize_t)sizeof(*ret_page))
		return -ENODATA;
	fp_statspage_sum_kinds(ret_page, &ret_page->fault_latency);
	return texts_end(ret_page) ? 0 : -EINVAL;
}

/*
 * The lock tells it, also of a process in another pid namespace, or of one that now runs another
 * program (exec). Where the file system has no locks, the process number must do.
 */
static bool is_dead(const struct fp_statsview *view)
{
	if (flock(view->fd, LOCK_SH | LOCK_NB) == 0)
		return true;
	return errno != EWOULDBLOCK && !fp_statspage_alive(&view->page);
}

int fp_statsview_look(struct fp_statsview *view)
{
	int r = copy(view->fd, &view->page);

	if (r < 0 || view->dead || !is_dead(view))
		return r;
	view->dead = true;
	return copy(view->fd, &view->page); /* once more: these are its last counts */
}

/* Takes ownership of fd. fd may be a negative errno, which is then returned. */
static int view_new(int fd, struct fp_statsview **ret_view)
{
	struct fp_statsview *view = fd < 0 ? NULL : calloc(1, sizeof(*view));
	struct stat st;
	int r;

	if (fd < 0)
		return fd;
	if (!view) {
		close(fd);
		return -ENOMEM;
	}
	view->fd = fd;
	r = fstat(fd, &st) < 0 ? -errno : fp_statsview_look(view);
	view->uid = r < 0 ? 0 : st.st_uid;
	if (r < 0)
		fp_statsview_close(view);
	else
		*ret_view = view;
	return r;
}

int fp_statsview_open(const char *path, struct fp_statsview **ret_view)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	return view_new(fd < 0 ? -errno : fd, ret_view);
}

int fp_statsview_openat(int dir_fd, const char *name, bool follow, struct fp_statsview **ret_view)
{
	fp_autoclose int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	int r;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	r = st.st_uid == geteuid() ? view_new(fp_take_fd(fd), ret_view) : -EPERM;
	if (r == 0 && !follow)
		fp_statsview_unfollow(*ret_view);
	return r;
}

void fp_statsview_unfollow(struct fp_statsview *view)
{
	close(view->fd);
	view->fd = -1;
}

void fp_statsview_close(struct fp_statsview *view)
{
	if (view && view->fd >= 0)
		close(view->fd);
	free(view);
}
