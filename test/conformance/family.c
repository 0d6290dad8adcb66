/* See family.h. */
#include "family.h"

#include <stdlib.h>
#include <sys/mman.h>

#define CONFIG_SHORT CONFIG_PLAIN "limits: { grace: 300ms }\n"

void family_mark(struct fp_link *link, uint32_t lease_id, uint8_t value)
{
	uint8_t bytes[IO_BYTES];

	memset(bytes, value, sizeof(bytes));
	assert_int_equal(rig_write(link, lease_id, 0, bytes, sizeof(bytes)), 0);
	assert_int_equal(rig_write(link, lease_id, OTHER_BYTES, bytes, sizeof(bytes)), 0);
}

uint8_t *family_inherit(void *base)
{
	uint8_t *p = mremap(base, 0, MIB, MREMAP_MAYMOVE);

	assert_true(p != MAP_FAILED);
	return p;
}

static void read_bytes(const struct bed *bed, const struct holder *holder, unsigned i, uint64_t at,
                       uint8_t *ret_bytes)
{
	if (holder->inherited[i])
		memcpy(ret_bytes, holder->inherited[i] + at, IO_BYTES);
	else
		assert_int_equal(rig_read(holder->link, bed->ids[i], at, ret_bytes, IO_BYTES), 0);
}

void family_assert_marks(const struct bed *bed, const struct holder *holder)
{
	uint8_t bytes[IO_BYTES];

	for (unsigned i = 0; i < N_LEASES; i++) {
		read_bytes(bed, holder, i, 0, bytes);
		assert_filled(bytes, (uint8_t)bed->ids[i], sizeof(bytes));
		read_bytes(bed, holder, i, OTHER_BYTES, bytes);
		assert_filled(bytes, (uint8_t)bed->ids[i], sizeof(bytes));
	}
}

void family_holder_open(const struct bed *bed, struct holder *holder)
{
	assert_int_equal(rig_open(&bed->site->url, NULL, 0, &holder->session), 0);
}

void family_holder_attach(const struct bed *bed, struct holder *holder)
{
	for (unsigned i = 0; i < N_LEASES && !rig_load_store(); i++) {
		assert_int_equal(fp_session_attach(holder->session, bed->ids[i], &holder->leases[i]), 0);
		assert_int_equal(holder->leases[i]->id, bed->ids[i]);
		assert_int_equal(holder->leases[i]->size_bytes, MIB);
		assert_true(holder->leases[i]->read_only);
	}
	assert_int_equal(fp_link_open(holder->session, &holder->link), 0);
}

void family_holder_adopt(const struct bed *bed, struct holder *holder, const struct holder *parent)
{
	struct fp_session_identity identity;

	assert_int_equal(fp_session_identity(parent->session, &identity), 0);
	if (!holder->session)
		family_holder_open(bed, holder);
	assert_int_equal(fp_session_adopt(holder->session, &identity, NULL), 0);
	for (unsigned i = 0; i < N_LEASES && rig_load_store(); i++)
		holder->inherited[i] =
		    family_inherit(parent->inherited[i] ? parent->inherited[i] : parent->leases[i]->base);
	family_holder_attach(bed, holder);
}

void family_unmap(struct holder *holder, unsigned i)
{
	if (holder->inherited[i])
		munmap(holder->inherited[i], MIB);
	holder->inherited[i] = NULL;
}

void family_holder_leave(struct holder *holder, bool abandons)
{
	fp_link_close(holder->link);
	for (unsigned i = 0; i < N_LEASES; i++)
		family_unmap(holder, i);
	if (abandons)
		fp_session_abandon(holder->session);
	else
		fp_session_close(holder->session);
	*holder = (struct holder){0};
}

uint64_t family_free_bytes(const struct bed *bed)
{
	struct fp_node_info info;

	assert_int_equal(fp_session_info(bed->site->onlooker, &info), 0);
	return info.free_bytes;
}

void family_await_free(const struct bed *bed, uint64_t wanted_bytes)
{
	uint64_t end_ns = fp_clock_ns() + PATIENCE_NS;

	while (family_free_bytes(bed) != wanted_bytes) {
		assert_true(fp_clock_ns() < end_ns);
		poll(NULL, 0, 5);
	}
}

static void site_open(struct site *site, const char *config)
{
	assert_int_equal(test_daemon_start_config(rig_farpaged, rig_scheme, config, &site->node), 0);
	assert_int_equal(fp_url_parse(site->node.url, &site->url), 0);
	assert_int_equal(rig_open(&site->url, NULL, 0, &site->onlooker), 0);
}

static void site_close(struct site *site)
{
	fp_session_close(site->onlooker);
	test_daemon_stop(&site->node);
	*site = (struct site){0};
}

static struct site shared;

int family_setup_shared(void **state)
{
	site_open(&shared, CONFIG_PLAIN);
	return 0;
}

int family_teardown_shared(void **state)
{
	site_close(&shared);
	return 0;
}

/*
 * The bed gets a node of its own, or the shared node. All memory of that node must be free again.
 */
static int setup_with(void **state, const char *config)
{
	struct bed *bed = calloc(1, sizeof(*bed));

	assert_non_null(bed);
	*state = bed;
	bed->site = config ? &bed->own : &shared;
	if (config)
		site_open(bed->site, config);
	family_await_free(bed, POOL_BYTES);
	family_holder_open(bed, &bed->parent);
	assert_int_equal(fp_link_open(bed->parent.session, &bed->parent.link), 0);
	for (unsigned i = 0; i < N_LEASES; i++) {
		assert_int_equal(fp_session_lease(bed->parent.session, MIB, &bed->parent.leases[i]), 0);
		assert_false(bed->parent.leases[i]->read_only);
		bed->ids[i] = bed->parent.leases[i]->id;
		family_mark(bed->parent.link, bed->ids[i], (uint8_t)bed->ids[i]);
	}
	return 0;
}

int family_setup(void **state)
{
	return setup_with(state, NULL);
}

int family_setup_plain(void **state)
{
	return setup_with(state, CONFIG_PLAIN);
}

int family_setup_short(void **state)
{
	return setup_with(state, CONFIG_SHORT);
}

int family_setup_quota(void **state)
{
	return setup_with(state, CONFIG_PLAIN "limits: { client_quota: 3M }\n");
}

int family_teardown(void **state)
{
	struct bed *bed = *state;

	family_holder_leave(&bed->grandchild, false);
	family_holder_leave(&bed->child, false);
	family_holder_leave(&bed->parent, false);
	site_close(&bed->own);
	free(bed);
	return 0;
}

bool family_status_says(const struct bed *bed, const char *text)
{
	char *json;
	bool there;

	assert_int_equal(fp_session_status(bed->site->onlooker, &json), 0);
	there = strstr(json, text);
	free(json);
	return there;
}

unsigned long family_denied(const struct bed *bed)
{
	unsigned long n;
	char *json;

	assert_int_equal(fp_session_status(bed->site->onlooker, &json), 0);
	assert_non_null(strstr(json, "\"denied\":"));
	n = strtoul(strstr(json, "\"denied\":") + strlen("\"denied\":"), NULL, 10);
	free(json);
	return n;
}

void family_await_status(const struct bed *bed, const char *text)
{
	uint64_t end_ns = fp_clock_ns() + PATIENCE_NS;

	while (!family_status_says(bed, text)) {
		assert_true(fp_clock_ns() < end_ns);
		poll(NULL, 0, 5);
	}
}

int family_resume(const struct bed *bed, const struct fp_session_identity *identity,
                  struct fp_session **ret_session)
{
	struct fp_session_options options = {.client_name = "conformance",
	                                     .secret = rig_secret(NULL),
	                                     .deadline_ns = PATIENCE_NS,
	                                     .resume = identity};

	return fp_session_open(&bed->site->url, &options, ret_session);
}

void family_skip_if_mapped(const char *why)
{
	if (rig_load_store())
		rig_skip(why);
}
