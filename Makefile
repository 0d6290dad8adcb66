# The short door: meson does the building (build/), scripts/ the rest. Each target installs what it lacks first.
BUILD ?= build
MINUTES ?= 10
STEPS ?= 2500000
TARGET ?= wire
SECONDS ?= 3600
FAULT_MODE ?= thread
LOCAL ?= 256K
SHARDS ?= 1,2,4
# Outside CI, what needs a guest skips where there can be none.
setup_vm = scripts/setup.sh vm || [ -z "$$CI" ]

.PHONY: all build tests demo check check-long check-quick check-compat check-rdma check-redis-fork churn mapdice steps \
	attack-long fuzz bench bench-targets install uninstall format clean help

all: ## build what is installed into $(BUILD)/
	@scripts/setup.sh build
	@FARPAGE_SUITES=installed scripts/build.sh $(BUILD)

build: all

tests: ## build everything, the tests too
	@scripts/setup.sh build tests
	@scripts/build.sh $(BUILD) -Dtests=enabled

demo: ## redis-server with 400 MiB of data and 64 MiB of local memory, over shm and over tcp
	@scripts/setup.sh build demo
	@FARPAGE_SUITES=installed scripts/build.sh $(BUILD)
	@scripts/demo.sh $(BUILD)

check: ## every suite, and unit and conformance again under the sanitizers (some 30 minutes on two cores)
	@scripts/setup.sh build tests demo check
	@$(setup_vm)
	@scripts/check.sh

check-long: ## the same with what `check` leaves out: more transports, modes and guests, long campaigns (hours)
	@scripts/setup.sh build tests demo check
	@$(setup_vm)
	@scripts/check.sh --long

check-quick: ## the suites that take seconds: unit, conformance, fuzz, style
	@scripts/setup.sh build tests check
	@scripts/check.sh --quick

check-rdma: ## the suites that need RDMA devices, in guests that have soft ones: see test/vm/README.md
	@scripts/setup.sh build tests
	@$(setup_vm)
	@scripts/check.sh --rdma

check-redis-fork: tests ## ten BGSAVEs and BGREWRITEAOFs of redis-server under writes, over shm, tcp, and rdma in a guest
	@scripts/setup.sh demo
	@$(setup_vm)
	@scripts/redis_fork.sh $(BUILD) 10

check-compat: tests ## other projects' test-suites and large programs, plain and with far memory (hours): see doc/compatibility.md
	@scripts/setup.sh check compat
	@test/compat/run.sh $(BUILD)

churn: tests ## the verifying churn test: MINUTES=10 for each transport and way of capture
	@for transport in shm tcp; do for capture in move protect; do \
		$(BUILD)/test/integration/churn --farpaged $(BUILD)/daemon/farpaged --transport $$transport \
			--capture $$capture --local-pages 16 --seconds $$(($(MINUTES) * 60)) || exit; \
	done; done

mapdice: tests ## STEPS=2500000 random calls on mappings against a plain process, over each transport and way of capture
	@for transport in shm tcp; do for capture in move protect; do \
		$(BUILD)/test/integration/mapdice --farpaged $(BUILD)/daemon/farpaged \
			--preload $(BUILD)/preload/libfarpage-preload.so \
			--transport $$transport --capture $$capture --fault-mode $(FAULT_MODE) --local $(LOCAL) --steps $(STEPS) || exit; \
	done; done

steps: tests ## MINUTES=10 of signals, each after an instruction chosen at random, in both fault modes
	@for mode in thread inline; do \
		FP_TEST_SECONDS=$$(($(MINUTES) * 60)) LD_LIBRARY_PATH=$(BUILD)/preload $(BUILD)/test/integration/steps \
			$(BUILD)/daemon/farpaged $(BUILD)/preload/libfarpage-preload.so shm FARPAGE_FAULT_MODE=$$mode || exit; \
	done

attack-long: tests ## MINUTES=10 of all attacks at once on a node, for each of SHARDS=1,2,4 (ALONE=1: each attack so long)
	@FARPAGED=$(abspath $(BUILD))/daemon/farpaged PYTHONPATH=test/lib /usr/bin/python3 test/hostile/long.py \
		--minutes $(MINUTES) --shards $(SHARDS) $(if $(ALONE),--alone) $(ATTACKS)

fuzz: ## TARGET=wire SECONDS=3600 of libFuzzer on a target of test/fuzz, under the sanitizers (needs clang)
	@scripts/setup.sh build tests
	@scripts/fuzz.sh $(TARGET) $(SECONDS)

bench: all ## the figures that README.md quotes
	@$(BUILD)/tools/farpage bench fault
	@$(BUILD)/tools/farpage bench touch

bench-targets: tests ## the targets of doc/performance.md, each met or missed (45 minutes; QUICK=1: five)
	@FARPAGE_BUILD=$(abspath $(BUILD)) /usr/bin/python3 test/bench/targets.py $(if $(QUICK),--quick)

install: all ## install under meson's prefix; configuration in /etc/farpage (DESTDIR is honoured)
	@meson install -C $(BUILD) --no-rebuild
	@[ -n "$(DESTDIR)" ] || scripts/tell_host.sh

uninstall: ## remove what install installed; a configuration that was changed stays (DESTDIR is honoured)
	@/usr/bin/python3 scripts/uninstall.py $(BUILD)
	@[ -n "$(DESTDIR)" ] || scripts/tell_host.sh

format: ## put our C in its house form
	@scripts/setup.sh check
	@test/style/format.sh --fix

clean: ## remove the build folders
	rm -rf $(BUILD) build-asan build-tsan build-fuzz

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 24
