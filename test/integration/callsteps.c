/* See callsteps.h. */
#include "callsteps.h"

#include <errno.h>
#include <setjmp.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>
#include <dirent.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <ucontext.h>

#include "underpreload.h"

static char local_areas[STEP_AREAS][STEP_AREA_BYTES] __attribute__((aligned(4096)));

/* ---- each call is made twice ---- */

struct step {
	const char *name;
	void (*init)(void **m);
	long (*call)(void **m);
	unsigned same; /* bit i: area i must have equal bytes after both calls */
};

static int temporary(void)
{
	int fd = open("steps", O_RDWR | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, "0123456789abcdefghijklmnopqrstuvwxyz", 36), 36);
	lseek(fd, 0, SEEK_SET);
	return fd;
}

/* Evaluates the expression e, in which fd is a descriptor of the file above. */
#define WITH_FILE(e)                                                                                         \
	({                                                                                                   \
		int fd = temporary();                                                                        \
		long r = (long)(e);                                                                          \
                                                                                                             \
		close(fd);                                                                                   \
		r;                                                                                           \
	})

/*
 * Evaluates the expression e, in which fd and peer are connected sockets. "hello" is on its way to
 * fd.
 */
#define WITH_PAIR(type, e)                                                                                   \
	({                                                                                                   \
		int pair[2], fd, peer;                                                                       \
		long r;                                                                                      \
                                                                                                             \
		assert_int_equal(socketpair(AF_UNIX, type, 0, pair), 0);                                     \
		fd = pair[0];                                                                                \
		peer = pair[1];                                                                              \
		assert_int_equal(write(peer, "hello", 5), 5);                                                \
		r = (long)(e);                                                                               \
		close(fd);                                                                                   \
		close(peer);                                                                                 \
		r;                                                                                           \
	})

static void set_vector(void **m)
{
	struct iovec *iov = m[0];

	iov[0] = (struct iovec){.iov_base = m[1], .iov_len = 5};
	iov[1] = (struct iovec){.iov_base = m[2], .iov_len = 20};
	strcpy(m[1], "fghij");
	strcpy(m[2], "klmnopqrstuvwxyzabcdefg");
}

static void set_message(void **m)
{
	struct msghdr *msg = m[3];

	set_vector(m);
	*msg = (struct msghdr){
	    .msg_iov = m[0], .msg_iovlen = 2, .msg_control = m[4], .msg_controllen = CMSG_SPACE(sizeof(int))};
	((struct cmsghdr *)m[4])->cmsg_len = CMSG_LEN(sizeof(int));
	((struct cmsghdr *)m[4])->cmsg_level = SOL_SOCKET;
	((struct cmsghdr *)m[4])->cmsg_type = SCM_RIGHTS;
	*(int *)CMSG_DATA((struct cmsghdr *)m[4]) = 2;
}

/*
 * Sends a descriptor and receives it. Says whether the received bytes and file are the ones sent.
 */
static long pass_descriptor(void **m, int fd, int peer)
{
	char got[64] = "", control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = {.iov_base = got, .iov_len = sizeof(got)};
	struct msghdr msg = {
	    .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	long n = sendmsg(fd, m[3], 0);
	struct stat a, b;
	int passed;

	if (n != 25 || recvmsg(peer, &msg, 0) != 25)
		return -2;
	passed = *(int *)(void *)CMSG_DATA(CMSG_FIRSTHDR(&msg));
	fstat(passed, &a);
	fstat(2, &b);
	close(passed);
	return a.st_ino == b.st_ino && strcmp(got, "fghijklmnopqrstuvwxyzabcd") == 0;
}

/* The other direction: receives a descriptor. All that the kernel writes goes into far memory. */
static long take_descriptor(void **m, int fd, int peer)
{
	struct msghdr *got = m[3];
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {.iov_base = (char[]){"ABCDEFGHIJ"}, .iov_len = 10};
	struct msghdr msg = {
	    .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	long n;

	memcpy(control,
	       &(struct cmsghdr){
	           .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS},
	       sizeof(struct cmsghdr));
	if (sendmsg(peer, &msg, 0) != 10)
		return -2;
	n = recvmsg(fd, got, 0);
	if (n == 15 && got->msg_controllen == CMSG_SPACE(sizeof(int)))
		n = close(*(int *)(void *)CMSG_DATA((struct cmsghdr *)got->msg_control)) == 0 ? 1000 : -3;
	return n;
}

static long over_network(void **m, bool is_datagram)
{
	struct sockaddr_in *addr = m[0];
	socklen_t *len = m[1];
	int a = socket(AF_INET, is_datagram ? SOCK_DGRAM : SOCK_STREAM, 0),
	    b = socket(AF_INET, is_datagram ? SOCK_DGRAM : SOCK_STREAM, 0), c = -1;
	long r = bind(a, (struct sockaddr *)addr, sizeof(*addr));

	*len = sizeof(*addr);
	r |= getsockname(a, (struct sockaddr *)addr, len);
	if (!is_datagram) {
		r |= listen(a, 1) | connect(b, (struct sockaddr *)addr, sizeof(*addr));
		*len = 128;
		c = accept(a, m[2], m[1]);
		r |= c < 0 || *len != sizeof(*addr) || ((struct sockaddr_in *)m[2])->sin_family != AF_INET;
		*len = sizeof(*addr);
		r |= getpeername(c, m[2], m[1]);
	} else {
		strcpy(m[3], "datagram");
		r |= sendto(b, m[3], 8, 0, m[0], sizeof(*addr)) != 8;
		*len = 128;
		r |= recvfrom(a, m[4], 100, 0, m[2], m[1]) != 8 || memcmp(m[4], "datagram", 8) != 0 ||
		     *len != sizeof(*addr);
	}
	close(a);
	close(b);
	close(c);
	return r;
}

static void set_address(void **m)
{
	*(struct sockaddr_in *)m[0] =
	    (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static long many_messages(void **m, int fd, int peer)
{
	struct mmsghdr *out = m[3], *in = m[5];
	long r;

	in[0].msg_hdr = (struct msghdr){.msg_iov = m[4], .msg_iovlen = 1};
	in[1].msg_hdr = in[0].msg_hdr;
	*(struct iovec *)m[4] = (struct iovec){.iov_base = m[1], .iov_len = 20};
	out[0].msg_hdr = (struct msghdr){.msg_iov = m[0], .msg_iovlen = 2};
	out[1].msg_hdr = (struct msghdr){.msg_iov = m[0], .msg_iovlen = 1};
	r = sendmmsg(peer, out, 2, 0);
	r = r * 100 + (long)out[0].msg_len + (long)out[1].msg_len;
	r = r * 100 + recvmmsg(fd, in, 2, MSG_DONTWAIT, NULL);
	return r * 1000 + (long)in[0].msg_len * 10 + (long)in[1].msg_len;
}

static void set_words(void **m, const char *path, const char *word)
{
	char **argv = m[1];

	strcpy(m[0], path);
	argv[0] = strcpy(m[2], path);
	argv[1] = strcpy(m[3], "-c");
	argv[2] = strcpy(m[4], word);
	argv[3] = NULL;
	((char **)m[5])[0] = strcpy((char *)m[4] + 2000, "FAR=7");
	((char **)m[5])[1] = NULL;
}

static long spawn(void **m, bool by_path)
{
	int status = 0;
	pid_t pid;
	int r = (by_path ? posix_spawnp : posix_spawn)(&pid, m[0], NULL, NULL, m[1], m[5]);

	if (r)
		return -r;
	return waitpid(pid, &status, 0) == pid ? status : -1;
}

static long execute(void **m)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		execve(m[0], m[1], m[5]);
		_exit(100);
	}
	return waitpid(pid, &status, 0) == pid ? status : -1;
}

static long wait_for_child(void **m, int how)
{
	pid_t pid = fork();
	long r;

	if (pid == 0)
		_exit(7);
	if (how == 0)
		r = waitpid(pid, m[0], 0) == pid;
	else if (how == 1)
		r = wait4(pid, m[0], 0, m[1]) == pid;
	else
		return waitid(P_PID, (id_t)pid, m[1], WEXITED) == 0 ? ((siginfo_t *)m[1])->si_status : -1;
	return r ? WEXITSTATUS(*(int *)m[0]) : -1;
}

static long stream_bytes(void **m)
{
	FILE *f = fopen(m[0], "w+");
	long r = (long)fwrite(m[1], 3, 7, f);

	r = r * 100 + fputs(m[1], f);
	r = r * 100 + (fprintf(f, "%s-%d\n", (char *)m[1], 42) == 24 + 4);
	rewind(f);
	r = r * 100 + (long)fread(m[2], 2, 5, f);
	r = r * 100 + (fgets(m[3], 10, f) == m[3]);
	fclose(f);
	return r;
}

static long directory(void **m)
{
	DIR *d = opendir(m[0]);
	long n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static long popen_line(void **m)
{
	FILE *f = popen(m[0], "r");
	long r = fgets(m[1], 100, f) == m[1];

	pclose(f);
	return r;
}

static void set_signals(void **m)
{
	sigemptyset(m[0]);
	sigaddset(m[0], SIGUSR1);
	*(struct timespec *)m[2] = (struct timespec){.tv_sec = 5};
}

static long signals(void **m, int how)
{
	long r = sigprocmask(SIG_BLOCK, m[0], m[3]);

	pthread_kill(pthread_self(), SIGUSR1);
	r |= sigpending(m[4]) | !sigismember(m[4], SIGUSR1);
	if (how == 0)
		r |= sigwait(m[0], m[1]) | (*(int *)m[1] != SIGUSR1);
	else if (how == 1)
		r |= sigwaitinfo(m[0], m[1]) != SIGUSR1;
	else
		r |= sigtimedwait(m[0], m[1], m[2]) != SIGUSR1;
	r |= pthread_sigmask(SIG_SETMASK, m[3], NULL);
	return r;
}

static long signal_descriptor(void **m)
{
	long r = sigprocmask(SIG_BLOCK, m[0], m[3]);
	int fd = signalfd(-1, m[0], SFD_CLOEXEC);

	pthread_kill(pthread_self(), SIGUSR1);
	r |= read(fd, m[1], sizeof(struct signalfd_siginfo)) != sizeof(struct signalfd_siginfo);
	r |= ((struct signalfd_siginfo *)m[1])->ssi_signo != SIGUSR1;
	close(fd);
	return r | sigprocmask(SIG_SETMASK, m[3], NULL);
}

static long timers(void **m)
{
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	long r = timerfd_settime(fd, 0, m[0], m[1]) | timerfd_gettime(fd, m[2]);
	timer_t *id = m[3];

	close(fd);
	((struct sigevent *)m[4])->sigev_notify = SIGEV_NONE;
	r |= timer_create(CLOCK_MONOTONIC, m[4], id) | timer_settime(*id, 0, m[0], m[1]) |
	     timer_gettime(*id, m[2]);
	r |= timer_delete(*id);
	return r | ((struct itimerspec *)m[2])->it_value.tv_sec / 100;
}

static long intervals(void **m)
{
	long r = setitimer(ITIMER_VIRTUAL, m[0], m[1]) | getitimer(ITIMER_VIRTUAL, m[2]);

	memset(m[0], 0, sizeof(struct itimerval));
	return r | setitimer(ITIMER_VIRTUAL, m[0], m[3]) | (((struct itimerval *)m[2])->it_value.tv_sec == 0);
}

static long polls(void **m, int fd, int how)
{
	struct pollfd *p = m[0];

	*p = (struct pollfd){.fd = fd, .events = POLLIN};
	if (how == 0)
		return poll(p, 1, 0) * 100 + p->revents;
	return ppoll(p, 1, m[1], m[2]) * 100 + p->revents;
}

static long selects(void **m, int fd, int how)
{
	FD_ZERO((fd_set *)m[0]);
	FD_SET(fd, (fd_set *)m[0]);
	if (how == 0)
		return select(fd + 1, m[0], NULL, NULL, m[1]) * 10 + FD_ISSET(fd, (fd_set *)m[0]);
	return pselect(fd + 1, m[0], NULL, NULL, m[1], m[2]) * 10 + FD_ISSET(fd, (fd_set *)m[0]);
}

static long epolls(void **m, int fd)
{
	int e = epoll_create1(EPOLL_CLOEXEC);
	long r;

	*(struct epoll_event *)m[0] = (struct epoll_event){.events = EPOLLIN, .data.u64 = 99};
	r = epoll_ctl(e, EPOLL_CTL_ADD, fd, m[0]);
	r = r * 10 + epoll_wait(e, m[1], 10, 0);
	r = r * 10 + epoll_pwait(e, m[1], 10, 0, m[2]);
	close(e);
	return r * 100 + (long)((struct epoll_event *)m[1])->data.u64;
}

static long locks(void **m, int fd)
{
	*(struct flock *)m[0] = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
	return fcntl(fd, F_OFD_SETLK, m[0]) | fcntl(fd, F_OFD_GETLK, m[0]);
}

static long queues(void **m)
{
	int q = msgget(IPC_PRIVATE, 0600), s = semget(IPC_PRIVATE, 2, 0600);
	struct sembuf *op = m[1];
	long r;

	*(long *)m[0] = 3;
	strcpy((char *)m[0] + sizeof(long), "message");
	r = msgsnd(q, m[0], 8, 0);
	r = r * 10 + msgrcv(q, m[2], 100, 0, 0);
	r = r * 10 + msgctl(q, IPC_STAT, m[3]);
	*op = (struct sembuf){.sem_num = 1, .sem_op = 5};
	r = r * 10 + semop(s, op, 1);
	r = r * 10 + semctl(s, 0, GETALL, m[4]) + ((unsigned short *)m[4])[1];
	msgctl(q, IPC_RMID, NULL);
	semctl(s, 0, IPC_RMID);
	return r;
}

/* More than fits in any window. */
static long semaphores(void **m)
{
	int s = semget(IPC_PRIVATE, 6000, 0600);
	long r = semctl(s, 0, SETALL, m[0]);

	r = r * 10 + semctl(s, 0, GETALL, m[1]);
	r = r * 10 + syscall(SYS_semctl, s, 0, GETALL, m[2]);
	semctl(s, 0, IPC_RMID);
	return r;
}

static long posix_queue(void **m)
{
	mqd_t q;
	long r;

	*(struct mq_attr *)m[1] = (struct mq_attr){.mq_maxmsg = 2, .mq_msgsize = 100};
	q = mq_open(m[0], O_RDWR | O_CREAT | O_EXCL, 0600, m[1]);
	if (q < 0)
		return -errno;
	strcpy(m[2], "message");
	r = mq_send(q, m[2], 8, 4);
	r = r * 100 + mq_receive(q, m[3], 100, m[4]);
	r = r * 100 + *(unsigned *)m[4] + mq_getattr(q, m[1]);
	mq_close(q);
	return r * 10 + mq_unlink(m[0]);
}

static long shifts(void **m, int fd, int peer)
{
	int to = open("shifted", O_RDWR | O_CREAT | O_TRUNC, 0600), ends[2];
	long r;

	*(off_t *)m[0] = 3;
	*(off_t *)m[1] = 4;
	r = sendfile(to, fd, m[0], 10);
	r = r * 100 + copy_file_range(fd, m[0], to, m[1], 5, 0);
	assert_int_equal(pipe(ends), 0);
	r = r * 100 + splice(fd, m[0], ends[1], NULL, 6, 0);
	close(ends[0]);
	close(ends[1]);
	close(to);
	return r * 100 + *(off_t *)m[0] + *(off_t *)m[1];
}

static long remains(void **m)
{
	return nanosleep(m[0], m[1]) | clock_nanosleep(CLOCK_MONOTONIC, 0, m[0], m[1]);
}

static long of_descriptors(void **m)
{
	int *fds = m[0], *pair = m[1];
	long r = pipe2(fds, O_CLOEXEC) | socketpair(AF_UNIX, SOCK_STREAM, 0, pair);

	r |= write(fds[1], "x", 1) != 1 || ioctl(fds[0], FIONREAD, m[2]) || *(int *)m[2] != 1;
	for (int i = 0; i < 2; i++)
		r |= close(fds[i]) | close(pair[i]);
	return r;
}

static long options(void **m, int fd)
{
	socklen_t *len = m[1];
	long r;

	*(int *)m[0] = 8192;
	r = setsockopt(fd, SOL_SOCKET, SO_RCVBUF, m[0], sizeof(int));
	*len = sizeof(struct ucred);
	r |= getsockopt(fd, SOL_SOCKET, SO_PEERCRED, m[2], len) | (((struct ucred *)m[2])->pid != getpid());
	return r | (*len != sizeof(struct ucred));
}

static long names(void **m)
{
	long r = prctl(PR_SET_NAME, m[0]) | prctl(PR_GET_NAME, m[1]);

	return r | pthread_setname_np(pthread_self(), m[0]) | pthread_getname_np(pthread_self(), m[2], 16);
}

static long limits(void **m)
{
	return getrlimit(RLIMIT_NOFILE, m[0]) | setrlimit(RLIMIT_NOFILE, m[0]) |
	       prlimit(0, RLIMIT_CORE, NULL, m[1]) | getrusage(RUSAGE_SELF, m[2]);
}

static long clocks(void **m)
{
	return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, m[0]) | clock_gettime(CLOCK_MONOTONIC, m[1]) |
	       clock_getres(CLOCK_MONOTONIC, m[2]) | (times(m[3]) < 0) | sched_rr_get_interval(0, m[4]) |
	       (((struct timespec *)m[1])->tv_sec == 0);
}

static long vectors_of_memory(void **m)
{
	struct iovec *to = m[0], *from = m[1];

	*to = (struct iovec){.iov_base = m[2], .iov_len = 30};
	*from = (struct iovec){.iov_base = m[3], .iov_len = 30};
	strcpy(m[3], "from one place to another one");
	return process_vm_readv(getpid(), to, 1, from, 1, 0);
}

static long futexes(void **m)
{
	uint32_t *word = m[0];
	long r =
	    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, *word + 1, NULL, NULL, 0) == -1 && errno == EAGAIN;

	((struct timespec *)m[1])->tv_nsec = 1000;
	r = r * 10 + (syscall(SYS_futex, word, FUTEX_WAIT, *word, m[1], NULL, 0) == -1 && errno == ETIMEDOUT);
	r = r * 10 + syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
	return r * 10 + syscall(SYS_futex, word, FUTEX_CMP_REQUEUE, 1, (void *)1, m[2], *word);
}

static long contexts(void **m)
{
	volatile int rounds = 0;
	long r = getcontext(m[0]);

	if (++rounds < 3)
		setcontext(m[0]);
	return r * 100 + rounds;
}

static long bad_addresses(void **m)
{
	void *volatile bad = (void *)8; /* volatile: hides the bad address from the compiler */
	int fd = open("/dev/zero", O_RDONLY);
	long r = read(fd, bad, 100) == -1 && errno == EFAULT;

	r = r * 10 + (writev(1, bad, 2) == -1 && errno == EFAULT);
	r = r * 10 + (open(bad, O_RDONLY) == -1 && errno == EFAULT);
	r = r * 10 + (recvmsg(fd, bad, 0) == -1);
	((struct iovec *)m[0])->iov_base = bad;
	((struct iovec *)m[0])->iov_len = 10;
	r = r * 10 + (readv(fd, m[0], 1) == -1 && errno == EFAULT);
	close(fd);
	return r;
}

#define STEPS(X)                                                                                             \
	X(read, , WITH_FILE(read(fd, m[0], 30)), 1)                                                          \
	X(write, strcpy(m[0], "written"), WITH_FILE(write(fd, m[0], 7) * 100 + pread(fd, m[1], 30, 0)), 2)   \
	X(pread, , WITH_FILE(pread(fd, m[0], 10, 5) * 100 + pread64(fd, m[1], 10, 6)), 3)                    \
	X(pwrite, strcpy(m[0], "AB"), WITH_FILE(pwrite(fd, m[0], 2, 5) + read(fd, m[1], 36)), 2)             \
	X(readv, set_vector(m), WITH_FILE(readv(fd, m[0], 2)), 6)                                            \
	X(writev, set_vector(m), WITH_FILE(writev(fd, m[0], 2) * 100 + pread(fd, m[3], 36, 0)), 8)           \
	X(preadv, set_vector(m), WITH_FILE(preadv(fd, m[0], 2, 7)), 6)                                       \
	X(pwritev, set_vector(m), WITH_FILE(pwritev(fd, m[0], 2, 1) * 100 + pread(fd, m[3], 36, 0)), 8)      \
	X(preadv2, set_vector(m), WITH_FILE(preadv2(fd, m[0], 2, -1, 0)), 6)                                 \
	X(raw_read, , WITH_FILE(syscall(SYS_read, fd, m[0], 30)), 1)                                         \
	X(shifts, , WITH_FILE(shifts(m, fd, 0)), 3)                                                          \
	X(vm, , vectors_of_memory(m), 4)                                                                     \
	X(random, , getrandom(m[0], 5000, 0) * 10 + getentropy(m[1], 256), 0)                                \
	X(stat, strcpy(m[0], "/etc/passwd"), stat(m[0], m[1]) | lstat(m[0], m[2]), 6)                        \
	X(statx, strcpy(m[0], "/etc/passwd"), statx(AT_FDCWD, m[0], 0, STATX_BASIC_STATS, m[1]), 2)          \
	X(fstat, , fstat(0, m[0]) | fstatat(0, "", m[1], AT_EMPTY_PATH), 0)                                  \
	X(statfs, strcpy(m[0], "/proc"), statfs(m[0], m[1]) | statvfs(m[0], m[2]), 6)                        \
	X(absent, strcpy(m[0], "/absent"), open(m[0], O_RDONLY), 0)                                          \
	X(files, (strcpy(m[0], "file1"), strcpy(m[1], "file2")), test_step_files(m), 4)                      \
	X(made, (strcpy(m[0], "a-XXXXXX"), strcpy(m[1], "a-XXXXXX")), test_step_made_names(m), 0)            \
	X(texts, (strcpy(m[0], "/proc/mounts"), memset(m[1], 'x', 20000)), test_step_texts(m), 4)            \
	X(environment, (strcpy(m[1], "FAR=3"), strcpy(m[2], "FAR_TOO=4")), test_step_environment(m), 0)      \
	X(long_paths, test_step_set_paths(m), test_step_long_paths(m), 0)                                    \
	X(long_folder, , test_step_long_folder(m), 1)                                                        \
	X(mount, test_step_set_options(m), test_step_mounts(m, false), 0)                                    \
	X(raw_mount, test_step_set_options(m), test_step_mounts(m, true), 0)                                 \
	X(semaphores, memset(m[0], 1, 12000), semaphores(m), 7)                                              \
	X(getcwd, , getcwd(m[0], 200) == m[0], 1)                                                            \
	X(realpath, strcpy(m[0], "/proc/self/../self/mounts"), realpath(m[0], m[1]) != NULL, 0)              \
	X(opendir, strcpy(m[0], "/etc"), directory(m), 0)                                                    \
	X(getdents, , WITH_FILE(({                                                                           \
		  int d = open("/", O_RDONLY | O_DIRECTORY);                                                 \
		  long n = syscall(SYS_getdents64, d, m[0], 30000);                                          \
		  close(d);                                                                                  \
		  n + 0 * fd;                                                                                \
	  })),                                                                                               \
	  1)                                                                                                 \
	X(xattr, (strcpy(m[0], "/etc/passwd"), strcpy(m[1], "user.absent")), getxattr(m[0], m[1], m[2], 10), \
	  0)                                                                                                 \
	X(stream, (strcpy(m[0], "stream"), strcpy(m[1], "a string of some length.")), stream_bytes(m), 12)   \
	X(pair_stream, strcpy(m[0], "there"),                                                                \
	  WITH_PAIR(SOCK_STREAM, send(fd, m[0], 5, 0) + recv(peer, m[1], 9, 0) + recv(fd, m[2], 9, 0)), 6)   \
	X(pass, set_message(m), WITH_PAIR(SOCK_DGRAM, pass_descriptor(m, fd, peer)), 0)                      \
	X(take, set_message(m), WITH_PAIR(SOCK_STREAM, take_descriptor(m, fd, peer)), 6)                     \
	X(mmsg, set_message(m), WITH_PAIR(SOCK_DGRAM, many_messages(m, fd, peer)), 0)                        \
	X(stream_socket, set_address(m), over_network(m, false), 0)                                          \
	X(datagram_socket, set_address(m), over_network(m, true), 0)                                         \
	X(options, , WITH_PAIR(SOCK_STREAM, options(m, fd)), 0)                                              \
	X(descriptors, , of_descriptors(m), 4)                                                               \
	X(poll, , WITH_PAIR(SOCK_STREAM, polls(m, fd, 0)), 0)                                                \
	X(ppoll, , WITH_PAIR(SOCK_STREAM, polls(m, fd, 1)), 0)                                               \
	X(select, , WITH_PAIR(SOCK_STREAM, selects(m, fd, 0)), 0)                                            \
	X(pselect, , WITH_PAIR(SOCK_STREAM, selects(m, fd, 1)), 0)                                           \
	X(epoll, , WITH_PAIR(SOCK_STREAM, epolls(m, fd)), 0)                                                 \
	X(fcntl, , WITH_FILE(locks(m, fd)), 1)                                                               \
	X(ioctl_bad, , WITH_FILE(ioctl(fd, TIOCGWINSZ, m[0])), 1)                                            \
	X(queues, , queues(m), 4)                                                                            \
	X(posix_queue, sprintf(m[0], "/farpage-test-%d", getpid()), posix_queue(m), 8)                       \
	X(uname, , uname(m[0]), 1)                                                                           \
	X(limits, , limits(m), 3)                                                                            \
	X(clocks, , clocks(m), 4)                                                                            \
	X(sleep, ((struct timespec *)m[0])->tv_nsec = 1000, remains(m), 0)                                   \
	X(timers, ((struct itimerspec *)m[0])->it_value.tv_sec = 99, timers(m), 0)                           \
	X(intervals, ((struct itimerval *)m[0])->it_value.tv_sec = 99, intervals(m), 0)                      \
	X(sigwait, set_signals(m), signals(m, 0), 2)                                                         \
	X(sigwaitinfo, set_signals(m), signals(m, 1), 2)                                                     \
	X(sigtimedwait, set_signals(m), signals(m, 2), 2)                                                    \
	X(signalfd, set_signals(m), signal_descriptor(m), 0)                                                 \
	X(spawn, set_words(m, "/bin/sh", "exit $FAR"), spawn(m, false), 0)                                   \
	X(spawnp, set_words(m, "sh", "exit $FAR"), spawn(m, true), 0)                                        \
	X(execve, set_words(m, "/bin/sh", "exit $FAR"), execute(m), 0)                                       \
	X(system, strcpy(m[0], "exit 7"), system(m[0]), 0)                                                   \
	X(popen, strcpy(m[0], "echo line"), popen_line(m), 2)                                                \
	X(waitpid, , wait_for_child(m, 0), 1)                                                                \
	X(wait4, , wait_for_child(m, 1), 1)                                                                  \
	X(waitid, , wait_for_child(m, 2), 0)                                                                 \
	X(affinity, , sched_getaffinity(0, 128, m[0]) | sched_setaffinity(0, 128, m[0]), 1)                  \
	X(names, strcpy(m[0], "a-name"), names(m), 6)                                                        \
	X(groups, , getgroups(100, m[0]) >= 0 && getresuid(m[1], (void *)((char *)m[1] + 4), m[2]) == 0, 7)  \
	X(futex, *(int *)m[0] = 1, futexes(m), 0)                                                            \
	X(contexts, , contexts(m), 0)                                                                        \
	X(jumps, , test_step_jumps(m), 0)                                                                    \
	X(bad, , bad_addresses(m), 0)

#define X(name, init, expr, same)                                                                            \
	static void init_##name(void **m)                                                                    \
	{                                                                                                    \
		(void)m;                                                                                     \
		init;                                                                                        \
	}                                                                                                    \
	static long call_##name(void **m)                                                                    \
	{                                                                                                    \
		return (long)(expr);                                                                         \
	}
STEPS(X)
#undef X
#define X(name, init, expr, same) {#name, init_##name, call_##name, same},
static const struct step steps[] = {STEPS(X)};

static long run_step(const struct step *step, char *areas, bool out, int *ret_errno)
{
	void *m[STEP_AREAS];
	long r;

	memset(areas, 0, STEP_AREAS * STEP_AREA_BYTES);
	for (unsigned i = 0; i < STEP_AREAS; i++)
		m[i] = areas + i * STEP_AREA_BYTES + STEP_PAGE - STEP_TAIL;
	step->init(m);
	if (out)
		test_evict(areas, STEP_AREAS * STEP_AREA_BYTES);
	errno = 0;
	r = step->call(m);
	*ret_errno = r == -1 ? errno : 0;
	return r;
}

void test_call_steps(char *far_areas)
{
	for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
		const struct step *step = &steps[i];
		int plain_errno, far_errno;
		long plain = run_step(step, local_areas[0], false, &plain_errno),
		     far = run_step(step, far_areas, true, &far_errno);

		if (far != plain || far_errno != plain_errno)
			fail_msg("%s: %ld (errno %d) on far memory, %ld (errno %d) on local", step->name, far,
			         far_errno, plain, plain_errno);
		for (unsigned a = 0; a < STEP_AREAS; a++)
			if ((step->same >> a & 1) &&
			    memcmp(local_areas[a], far_areas + a * STEP_AREA_BYTES, STEP_AREA_BYTES) != 0)
				fail_msg("%s: other bytes in memory %u", step->name, a);
	}
}
