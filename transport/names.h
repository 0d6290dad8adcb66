/*
 * The addresses of host names. Each name is looked up once and its addresses are kept, so that no
 * resume waits for a resolver in the middle of an outage. Room: transport. Any thread.
 */
#ifndef FP_NAMES_H
#define FP_NAMES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define FP_ADDRESSES_MAX 8u /* most addresses used of one name */

struct fp_addresses {
	unsigned n; /* at least one */
	struct {
		socklen_t len;
		union {
			struct sockaddr any;
			struct sockaddr_storage room;
		};
	} list[FP_ADDRESSES_MAX];
};

/*
 * The addresses of a host, with the port set in each. If none are kept it looks the host up, which
 * blocks as long as the resolver likes. 0 and *ret_addresses; -ENXIO (the name has no address, or
 * nobody answers), -ENOMEM, or the system's error.
 */
int fp_names_find(const char *host, uint16_t port, struct fp_addresses *ret_addresses);
/* To be called after the addresses were tried: says whether one of them answered. */
void fp_names_tried(const char *host, bool answered);
/*
 * Looks a host up again if its addresses have all failed several times in a row. If that fails too,
 * the old addresses stay. Blocks as long as the resolver likes, so no other thread may wait for the
 * thread that calls this.
 */
void fp_names_refresh(const char *host);

/* Call it in a forked child while that has one thread. */
void fp_names_forked(void);

#endif
