/*
 * The conformance suite: the duties of every transport, tested over one transport against a real
 * farpaged.
 *
 *   conformance SCHEME FARPAGED [CASES]
 *
 * CASES ("*lease*") selects cases by name. SCHEME is shm, tcp, rdma or rdma+tcp; the last two need
 * a device, whose address is in FARPAGE_TEST_RDMA. The status is 77 if a scheme can't be tested.
 *
 * Room: test/conformance. The cases are in cases_*.c, shared parts in rig.c. To add a new
 * transport, add its scheme.
 */
#include "rig.h"

#include <stdio.h>

static int usage(void)
{
	fprintf(stderr, "usage: conformance SCHEME FARPAGED [CASES]\n");
	return 2;
}

int main(int argc, char **argv)
{
	if (argc < 3 || argc > 4)
		return usage();
	rig_scheme = argv[1];
	rig_farpaged = argv[2];
	if (argc == 4)
		cmocka_set_test_filter(argv[3]);
	if (rig_obstacle()) {
		printf("skipped: %s\n", rig_obstacle());
		return 77;
	}
	return run_handshake_cases() + run_lease_cases() + run_io_cases() + run_fault_cases() +
	               run_resume_cases() + run_adopt_cases()
	           ? 1
	           : 0;
}
