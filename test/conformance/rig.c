/* See rig.h. */
#include "rig.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "verbs.h"

const char *rig_scheme, *rig_farpaged;

bool rig_load_store(void)
{
	return strcmp(rig_scheme, "shm") == 0;
}

bool rig_one_sided(void)
{
	return strcmp(rig_scheme, "tcp") != 0;
}

bool rig_keyed(void)
{
	return strncmp(rig_scheme, "rdma", 4) == 0;
}

bool rig_socket(void)
{
	return strcmp(rig_scheme, "rdma") != 0;
}

const char *rig_obstacle(void)
{
	struct fp_verbs_domain *domain;

	if (!rig_keyed())
		return NULL;
	if (fp_verbs_load() < 0)
		return "libibverbs or librdmacm is not installed";
	if (!test_daemon_rdma_host())
		return "FARPAGE_TEST_RDMA names no address of an rdma device";
	if (!rig_socket())
		return NULL;
	if (fp_verbs_domain_open(NULL, 0, &domain) < 0)
		return "there is no rdma device whose queue pairs can be connected by hand";
	fp_verbs_domain_unref(domain);
	return NULL;
}

static int setup_node(void **state, const char *config)
{
	struct rig *rig = calloc(1, sizeof(*rig));

	assert_non_null(rig);
	*state = rig;
	assert_int_equal(test_daemon_start_config(rig_farpaged, rig_scheme, config, &rig->node), 0);
	assert_int_equal(fp_url_parse(rig->node.url, &rig->url), 0);
	return 0;
}

int rig_setup_node(void **state)
{
	return setup_node(state, CONFIG_PLAIN);
}

int rig_setup_quota(void **state)
{
	return setup_node(state, CONFIG_QUOTA);
}

int rig_setup_secret(void **state)
{
	return setup_node(state, CONFIG_SECRET);
}

int rig_setup(void **state)
{
	struct rig *rig;

	setup_node(state, CONFIG_PLAIN);
	rig = *state;
	assert_int_equal(rig_open(&rig->url, NULL, 0, &rig->session), 0);
	assert_int_equal(fp_session_lease(rig->session, MIB, &rig->lease), 0);
	assert_int_equal(fp_link_open(rig->session, &rig->link), 0);
	return 0;
}

int rig_teardown(void **state)
{
	struct rig *rig = *state;

	fp_link_close(rig->link);
	fp_session_close(rig->session);
	test_daemon_stop(&rig->node);
	free(rig);
	return 0;
}

const char *rig_secret(const char *secret)
{
	if (!secret)
		return rig_socket() ? NULL : TEST_DAEMON_SECRET;
	return strcmp(secret, RIG_NO_SECRET) ? secret : NULL;
}

int rig_open(const struct fp_url *url, const char *secret, uint64_t deadline_ns,
             struct fp_session **ret_session)
{
	struct fp_session_options options = {
	    .client_name = "conformance",
	    .secret = rig_secret(secret),
	    .deadline_ns = deadline_ns ? deadline_ns : PATIENCE_NS,
	};

	return fp_session_open(url, &options, ret_session);
}

struct job *job_new(enum fp_io_op op, uint32_t lease_id, uint64_t offset_bytes, unsigned n_segs,
                    uint32_t seg_bytes)
{
	struct job *job = calloc(1, sizeof(*job));

	assert_non_null(job);
	job->len = (size_t)n_segs * seg_bytes;
	job->buf = calloc(1, job->len);
	assert_non_null(job->buf);
	for (unsigned i = 0; i < n_segs; i++) {
		size_t at = (size_t)i * seg_bytes;

		job->segs[i] = (struct fp_seg){lease_id, seg_bytes, offset_bytes + at, job->buf + at};
	}
	job->io = (struct fp_io){.op = op, .n_segs = n_segs, .segs = job->segs, .status = 1, .user = job};
	return job;
}

void job_free(struct job *job)
{
	free(job->buf);
	free(job);
}

struct job *rig_await(struct fp_link *link)
{
	uint64_t end_ns = fp_clock_ns() + PATIENCE_NS;
	struct fp_io *done;
	struct pollfd p;
	struct job *job;

	while (fp_link_poll(link, &done, 1) == 0) {
		assert_true(fp_clock_ns() < end_ns);
		if (fp_link_pollfd(link, &p))
			poll(&p, 1, 10);
	}
	job = done->user;
	assert_int_equal(job->n_done++, 0);
	return job;
}

int rig_run(struct fp_link *link, struct job *job)
{
	job->n_done = 0;
	assert_int_equal(fp_link_submit(link, &job->io), 0);
	assert_ptr_equal(rig_await(link), job);
	return job->io.status;
}

int rig_read(struct fp_link *link, uint32_t lease_id, uint64_t offset_bytes, void *buf, size_t len)
{
	struct job *job = job_new(FP_IO_READ, lease_id, offset_bytes, 1, (uint32_t)len);
	int status = rig_run(link, job);

	if (status == 0)
		memcpy(buf, job->buf, len);
	job_free(job);
	return status;
}

int rig_write(struct fp_link *link, uint32_t lease_id, uint64_t offset_bytes, const void *buf, size_t len)
{
	struct job *job = job_new(FP_IO_WRITE, lease_id, offset_bytes, 1, (uint32_t)len);
	int status;

	memcpy(job->buf, buf, len);
	status = rig_run(link, job);
	job_free(job);
	return status;
}

void assert_filled(const uint8_t *buf, uint8_t value, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (buf[i] != value)
			fail_msg("byte %zu is %02x, not %02x", i, buf[i], value);
}

static void *fake_node_thread(void *arg)
{
	struct fake_node *node = arg;
	int fd = accept4(node->listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd >= 0) {
		node->serve(fd);
		close(fd);
	}
	return NULL;
}

static void listen_unix(struct fake_node *node, char *ret_url, size_t len)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/node.sock", node->dir);
	node->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(node->listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	snprintf(ret_url, len, "shm:%s", addr.sun_path);
}

static void listen_tcp(struct fake_node *node, char *ret_url, size_t len)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t addr_len = sizeof(addr);

	node->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(node->listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(getsockname(node->listener, (struct sockaddr *)&addr, &addr_len), 0);
	snprintf(ret_url, len, "%s://127.0.0.1:%u", rig_scheme, ntohs(addr.sin_port));
}

void fake_node_start(struct fake_node *node, void (*serve)(int fd))
{
	char url[128];

	*node = (struct fake_node){.serve = serve, .dir = "/tmp/farpage-test.XXXXXX"};
	assert_non_null(mkdtemp(node->dir));
	if (rig_load_store())
		listen_unix(node, url, sizeof(url));
	else
		listen_tcp(node, url, sizeof(url));
	assert_int_equal(listen(node->listener, 1), 0);
	assert_int_equal(fp_url_parse(url, &node->url), 0);
	assert_int_equal(pthread_create(&node->thread, NULL, fake_node_thread, node), 0);
}

void fake_node_stop(struct fake_node *node)
{
	char path[96];

	pthread_join(node->thread, NULL);
	close(node->listener);
	snprintf(path, sizeof(path), "%s/node.sock", node->dir);
	unlink(path);
	rmdir(node->dir);
}
