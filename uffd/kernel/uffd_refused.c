/*
 * Why userfaultfd is refused to this process, and what helps. Room: uffd; looks, changes nothing.
 * See uffd.h.
 */
#include "uffd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"

#define DEVICE "/dev/userfaultfd"
#define SYSCTL "/proc/sys/vm/unprivileged_userfaultfd"

/* The value that a line of a file of numbers begins with, behind key; -1: none. */
static long number_in(const char *path, const char *key)
{
	char text[4096], *at;
	fp_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	long value;

	if (len < 0)
		return -1;
	text[len] = '\0';
	at = strstr(text, key);
	return at && sscanf(at + strlen(key), " %ld", &value) == 1 ? value : -1;
}

/* A seccomp profile is in force: what it refuses looks like a want of permission. */
static bool is_confined(void)
{
	return number_in("/proc/self/status", "\nSeccomp:") == 2;
}

struct text {
	char *buf;
	size_t len, used;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = t->used < t->len ? vsnprintf(t->buf + t->used, t->len - t->used, format, args) : 0;
	va_end(args);
	t->used += n > 0 ? (size_t)n : 0;
}

static const char *user_name(char *buf, size_t len)
{
	snprintf(buf, len, "%s", getenv("USER") && *getenv("USER") ? getenv("USER") : "");
	if (!*buf)
		snprintf(buf, len, "\"$(id -un)\"");
	return buf;
}

/* Groups and users by number, or named by the command: their databases may be far away. */
static void add_device(struct text *t)
{
	char user[64];
	struct stat st;

	if (stat(DEVICE, &st) < 0) {
		add(t, "there is no " DEVICE
		       " here (Linux 6.1 has it; a container gets it by `--device " DEVICE "`)");
		return;
	}
	if (access(DEVICE, R_OK | W_OK) == 0) {
		add(t, DEVICE " is there and may be opened, but gives no userfaultfd");
		return;
	}
	if (st.st_gid != 0 && (st.st_mode & 060) == 060)
		add(t,
		    "the group that owns " DEVICE ": `sudo usermod -aG \"$(stat -c %%G " DEVICE
		    ")\" %s`, then log in again",
		    user_name(user, sizeof(user)));
	else
		add(t,
		    "access to " DEVICE ": `sudo setfacl -m u:%u:rw " DEVICE
		    "` until the next boot, or `sudo chgrp farpage " DEVICE " && sudo chmod 660 " DEVICE
		    "` and the group farpage (the udev rule of the package does that)",
		    (unsigned)getuid());
}

static void add_sysctl(struct text *t)
{
	switch (number_in(SYSCTL, "")) {
	case 0:
		add(t, "; for every user: `sudo sysctl vm.unprivileged_userfaultfd=1`");
		break;
	case 1:
		add(t, "; vm.unprivileged_userfaultfd is 1 already");
		break;
	default:
		break;
	}
}

static void explain_permission(struct text *t)
{
	if (is_confined()) {
		add(t, "userfaultfd is refused here, maybe by the seccomp profile in force (docker run "
		       "--security-opt "
		       "seccomp=PROFILE, one that allows it). Besides: ");
	} else {
		add(t, "userfaultfd is not permitted to this user. One of these helps: ");
	}
	add_device(t);
	add_sysctl(t);
	add(t,
	    "; or the capability CAP_SYS_PTRACE, as root has: `sudo setpriv --reuid %u --regid %u "
	    "--init-groups "
	    "--inh-caps +sys_ptrace --ambient-caps +sys_ptrace farpage run ...`",
	    (unsigned)getuid(), (unsigned)getgid());
}

void fp_uffd_explain(int error, char *buf, size_t len)
{
	struct text t = {.buf = buf, .len = len};

	if (error == -EPERM || error == -EACCES)
		explain_permission(&t);
	else if (error == -ENOSYS)
		add(&t,
		    is_confined()
		        ? "a seccomp profile hides userfaultfd: allow the call `userfaultfd` in it (docker "
		          "run "
		          "--security-opt seccomp=PROFILE)"
		        : "this kernel has no userfaultfd: it needs CONFIG_USERFAULTFD (`grep USERFAULTFD "
		          "/boot/config-$(uname -r)`)");
	else if (error == -EOPNOTSUPP)
		add(&t, "this kernel's userfaultfd can't write-protect: Linux 5.7 is needed");
	else if (error == -EMFILE || error == -ENFILE)
		add(&t, "userfaultfd: %s: raise the limit of open files, `ulimit -n 1024` at least",
		    strerror(-error));
	else
		add(&t, "userfaultfd: %s", strerror(-error));
}
