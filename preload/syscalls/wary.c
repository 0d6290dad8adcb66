/* See wary.h. */
#include "wary.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "call_args.h"
#include "calls.h"
#include "cleanup.h"
#include "fdutil.h"
#include "local.h"
#include "shim.h"

#define INHERITED_MAX 256 /* descriptors from this number on are hardly ever inherited */
#define ULP_NAME_MAX  16

/* Each of these pins the memory of a direct read, or copies. All others are not known well
 * enough. */
static bool pins_direct_reads(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs) < 0)
		return false;
	switch ((uint32_t)fs.f_type) {
	case 0xEF53:     /* ext2, ext3, ext4 */
	case 0x58465342: /* XFS */
	case 0x9123683E: /* Btrfs */
	case 0xF2F52010: /* F2FS */
	case 0x01021994: /* tmpfs; also the nodes in /dev */
	case 0x50495045: /* pipes: the flag means packets */
		return true;
	default:
		return false;
	}
}

/* These devices hold nobody's memory; KVM lets go of a page when the kernel tells it to. */
static bool is_harmless(dev_t device)
{
	enum { MEMORY = 1, TTY = 4, TTY_OWN = 5, MISC = 10, PTY_FIRST = 136, PTY_LAST = 143 };
	enum { MISC_TUN = 200, MISC_KVM = 232 };
	unsigned kind = major(device), which = minor(device);

	return kind == MEMORY || kind == TTY || kind == TTY_OWN || (kind >= PTY_FIRST && kind <= PTY_LAST) ||
	       (kind == MISC && (which == MISC_TUN || which == MISC_KVM));
}

static bool is_tls(int fd)
{
	char name[ULP_NAME_MAX] = "";
	socklen_t len = sizeof(name) - 1;

	return getsockopt(fd, IPPROTO_TCP, TCP_ULP, name, &len) == 0 && strcmp(name, "tls") == 0;
}

static bool is_direct(int flags)
{
	return (flags & O_DIRECT) && (flags & O_ACCMODE) != O_WRONLY;
}

/* True if what is open there with these flags may hold memory. */
static bool may_hold(int fd, int flags)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return false;
	if (S_ISCHR(st.st_mode))
		return !is_harmless(st.st_rdev);
	if (S_ISSOCK(st.st_mode))
		return is_tls(fd);
	return is_direct(flags) && !S_ISBLK(st.st_mode) && !pins_direct_reads(fd);
}

void fp_wary_look(int fd, int flags)
{
	int saved = errno;

	if (!fp_shim_agent() || fp_local_is_agent() || fp_fd_is_ours(fd))
		return;
	if (flags == -1)
		flags = (int)fp_call_raw_syscall(SYS_fcntl, (long)fd, (long)F_GETFL);
	if (flags >= 0 && (is_direct(flags) || (flags & O_ACCMODE) == O_RDWR) && may_hold(fd, flags))
		fp_agent_be_wary(fp_shim_agent());
	errno = saved;
}

void fp_wary_look_at_inherited(void)
{
	for (int fd = 0; fd < INHERITED_MAX; fd++)
		fp_wary_look(fd, -1);
}

void fp_wary_setsockopt(int level, int option, const void *value, socklen_t len)
{
	char name[ULP_NAME_MAX] = "";

	if (level != IPPROTO_TCP || option != TCP_ULP || len == 0 || !fp_shim_agent())
		return;
	if (fp_call_args_fetch(name, value, FP_MIN(len, sizeof(name) - 1)) == 0 && strcmp(name, "tls") == 0)
		fp_agent_be_wary(fp_shim_agent());
}
