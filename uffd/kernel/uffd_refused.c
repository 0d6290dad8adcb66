/*
 * Why userfaultfd is refused to this process, and the remedies. Room: uffd/kernel. Names every
 * remedy: the administrator knows which one applies. See uffd.h.
 */
#include "uffd.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void explain_permission(char *buf, size_t len)
{
	unsigned user = (unsigned)getuid(), group = (unsigned)getgid();

	snprintf(buf, len,
	         "userfaultfd is not permitted here. One of these helps: access to /dev/userfaultfd, by "
	         "`sudo usermod -aG farpage \"$(id -un)\"` and a new login (without the package's udev rule "
	         "`sudo chgrp farpage /dev/userfaultfd && sudo chmod 660 /dev/userfaultfd` first), by `sudo "
	         "setfacl -m u:%u:rw /dev/userfaultfd` until the next boot, or in a container by `--device "
	         "/dev/userfaultfd`; for every user `sudo sysctl vm.unprivileged_userfaultfd=1`; or "
	         "CAP_SYS_PTRACE: `sudo setpriv --reuid %u --regid %u --init-groups --inh-caps +sys_ptrace "
	         "--ambient-caps +sys_ptrace farpage run ...`. A seccomp profile in force must allow it, too",
	         user, user, group);
}

void fp_uffd_explain(int error, char *buf, size_t len)
{
	if (error == -EPERM || error == -EACCES)
		explain_permission(buf, len);
	else if (error == -ENOSYS)
		snprintf(
		    buf, len,
		    "there is no userfaultfd: the kernel needs CONFIG_USERFAULTFD, and a seccomp profile in "
		    "force must allow the call (docker run --security-opt seccomp=PROFILE)");
	else if (error == -EOPNOTSUPP)
		snprintf(buf, len, "this kernel's userfaultfd can't write-protect: Linux 5.7 is needed");
	else
		snprintf(buf, len, "userfaultfd: %s%s", strerror(-error),
		         error == -EMFILE || error == -ENFILE
		             ? ": raise the limit of open files, `ulimit -n 1024` at least"
		             : "");
}
