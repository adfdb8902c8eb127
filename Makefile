# SPDX-License-Identifier: MIT
# make, make deps, make demo, make test, make lint, make format, make apps, make soak, make bench, make bench-servers, make install, make clean.
# make deb, make rpm, make dist: packages and a tarball, in build/packages. make test-packages SYSTEMS='bookworm trixie': tests them.
# make compilers COMPILERS='gcc-14 clang-19': builds everything by each of these compilers (default: gcc and clang), without a warning.
# make test-systems SYSTEMS='bookworm trixie sid', make test-glibc VERSIONS='2.34 2.43': the tests on other systems, and with other releases of glibc.
# make test-kernels KERNELS='trixie/cloud-amd64 trixie/arm64-16k': the preloaded tests under other kernels and on other processors, emulated.
# WERROR=1: warnings are errors. CXX=clang++ CC=clang BUILD=build/clang: another compiler.
# Variants, each in a build directory of its own: DEBUG=1, SANITIZE=address|undefined (unit tests only), CROSS=aarch64.
# Other defaults: DEFINES='-DFIBERTHREAD_DEFAULT_WORKERS=4 -DFIBERTHREAD_DEFAULT_STACK_SIZE=262144 -DFIBERTHREAD_QUEUE_SIZE=4096' with a
# BUILD=directory of its own.

# Only the outermost make sets the number of jobs. Those that it calls get their share from its job server.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:

PREFIX ?= /usr/local
# Where the library goes. Distributions have /usr/lib64, or /usr/lib/x86_64-linux-gnu.
LIBDIR ?= $(PREFIX)/lib
VERSION := 0.1
# The version of the library's file. The first number is the soname's, and grows as CONTRIBUTING.md says. The second grows with each release that
# adds names, and the third with all other releases.
SO_VERSION := 0.1.0
comma := ,

# V=1 shows the commands.
Q = $(if $(V),,@echo "  $@";)

ARCH := $(if $(CROSS),$(CROSS),$(shell uname -m))
BUILD := build$(if $(CROSS),/$(CROSS))$(if $(DEBUG),/debug)$(if $(SANITIZE),/sanitize-$(SANITIZE))
TOOL := $(if $(CROSS),$(CROSS)-linux-gnu-)
# CXX=clang++ CC=clang choose another compiler, but not for another processor.
ifneq ($(CROSS),)
override CXX := $(TOOL)g++
override CC := $(TOOL)gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
ifeq ($(origin CC),default)
CC := gcc
endif
AR := $(TOOL)ar

# -g in every build: a report from the field needs names.
OPTIMIZE := $(if $(DEBUG),-O1 -DFIBERTHREAD_DEBUG_CHECKS,-O2) $(DEFINES)
WARN := -Wall -Wextra $(if $(WERROR),-Werror)
# Landing pads for indirect calls and jumps; return addresses signed where the processor can. No shadow stacks: sched/arch/asm_end.h.
PROTECT := $(if $(filter aarch64,$(ARCH)),-mbranch-protection=standard,-fcf-protection=branch)
# CPPFLAGS, CFLAGS, CXXFLAGS and LDFLAGS are the caller's, as dpkg and rpm set them. The flags that the library cannot do without stand behind
# them. REFUSED takes back two. With _FORTIFY_SOURCE libc's headers give longjmp() and its kin the name __longjmp_chk, which the library defines
# as well. Link-time optimization loses names that only assembly uses. A stack protector is fine: all fibers have the same guard.
REFUSED := -U_FORTIFY_SOURCE -fno-lto
# sync/include/fiberthread has the public headers. The library's sources include them as programs do: "fiberthread/fiber.h".
INCLUDE := -I. -Isync/include
LIBFLAGS := -std=c++20 $(OPTIMIZE) $(CPPFLAGS) $(CXXFLAGS) $(REFUSED) $(PROTECT) -g $(WARN) $(INCLUDE) -MMD -MP -fPIC -fno-exceptions -fno-rtti -fno-threadsafe-statics \
	-fvisibility=hidden -ftls-model=initial-exec -fasynchronous-unwind-tables $(if $(SANITIZE),-fsanitize=$(SANITIZE))
TESTFLAGS := -std=c++20 $(OPTIMIZE) -g $(WARN) $(INCLUDE) -MMD -MP $(if $(SANITIZE),-fsanitize=$(SANITIZE))

# Each processor has a folder, named as `uname -m` names it: sched/arch/README.md. Its posix/ belongs to shim.
LOW := $(wildcard sched/*.cpp sched/run/*.cpp sched/life/*.cpp sched/memory/*.cpp sched/glibc/*.cpp sched/observe/*.cpp sched/explore/*.cpp sync/*.cpp sched/arch/$(ARCH)/*.cpp sched/arch/$(ARCH)/*.S)
HIGH := $(wildcard shim/*.cpp shim/fibers/*.cpp sched/arch/$(ARCH)/posix/*.cpp sched/arch/$(ARCH)/posix/*.S preload/*.cpp)
LOW_OBJECTS := $(LOW:%=$(BUILD)/obj/%.o)
HIGH_OBJECTS := $(HIGH:%=$(BUILD)/obj/%.o)
SO := $(BUILD)/libfiberthread.so
# Programs that are linked with the library look for it by the soname. Here that is a link. When installed, both names are links to the file with
# all numbers.
SONAME := libfiberthread.so.$(firstword $(subst ., ,$(SO_VERSION)))
SO_LINK := $(BUILD)/$(SONAME)
# Preloaded before the library by `fiberthread explore`.
EXPLORE_SO := $(BUILD)/libfiberthread-explore.so
EXPLORE_OBJECTS := $(BUILD)/explore/points.o $(BUILD)/explore/server.o $(BUILD)/explore/$(ARCH).o
# In place of ThreadSanitizer's run-time, for programs that were built with it: a program finds it by the names that such a run-time has.
MEMORY_SO := $(BUILD)/libfiberthread-explore-memory.so
MEMORY_OBJECTS := $(patsubst preload/explore/%.cpp,$(BUILD)/explore/%.o,$(wildcard preload/explore/memory/*.cpp))
TSAN_NAMES := libtsan.so.0 libtsan.so.2 libclang_rt.tsan-$(ARCH).so libclang_rt.tsan.so
TSAN_LINKS := $(TSAN_NAMES:%=$(BUILD)/fiberthread-tsan/%)
LAUNCHER := $(BUILD)/fiberthread
# The launcher is a separate program, which shares the table of variables with the library.
LAUNCHER_OBJECTS := $(patsubst preload/%.cpp,$(BUILD)/obj/launcher/%.o,$(wildcard preload/launcher/*.cpp preload/launcher/explore/*.cpp) preload/options.cpp preload/settings.cpp)

UNIT_TESTS := $(patsubst tests/%.cpp,$(BUILD)/tests/%,$(wildcard tests/*_test.cpp))
PRELOADED := $(patsubst tests/preloaded/%,$(BUILD)/tests/preloaded/%,$(basename $(wildcard tests/preloaded/*.c tests/preloaded/*.cpp)))

.PHONY: all
all: $(SO) $(SO_LINK) $(EXPLORE_SO) $(MEMORY_SO) $(TSAN_LINKS) $(LAUNCHER) $(SO)-gdb.py $(BUILD)/fiberthread.pc

# This file changes when a source is removed. No object's time would show that.
$(BUILD)/sources: always
	@mkdir -p $(@D); echo '$(LOW) $(HIGH) $(LAUNCHER_OBJECTS)' | cmp -s - $@ || echo '$(LOW) $(HIGH) $(LAUNCHER_OBJECTS)' >$@
.PHONY: always

# Prints one clear message instead of "g++: not found" for each file.
$(BUILD)/.compiler:
	@command -v $(firstword $(CXX)) >/dev/null || { echo 'There is no compiler ($(CXX)); Debian has it in g++$(CROSS:%=-%-linux-gnu). "make deps" installs it, and all that demo, test and bench need.' >&2; exit 1; }
	@mkdir -p $(BUILD) && touch $@

$(BUILD)/obj/%.cpp.o: %.cpp Makefile | $(BUILD)/.compiler
	@mkdir -p $(@D)
	$(Q)$(CXX) $(LIBFLAGS) -c $< -o $@

# Sanitizers call dlsym() before they are ready themselves.
$(BUILD)/obj/shim/dlsym.cpp.o: LIBFLAGS += -fno-sanitize=all

$(BUILD)/obj/%.S.o: %.S Makefile | $(BUILD)/.compiler
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(PROTECT) -g -I. -MMD -MP -c $< -o $@

# The C driver links the library, so that nothing of libstdc++ gets in. It has two segments and not four, which saves 20 µs of each program's start.
# The compiler's start files are left out: the library uses nothing of them, and those of some releases have no landing pads.
$(SO): $(LOW_OBJECTS) $(HIGH_OBJECTS) preload/exports.map $(BUILD)/sources
	$(Q)$(CC) -shared $(LDFLAGS) -nostartfiles -static-libgcc $(if $(SANITIZE),-fsanitize=$(SANITIZE),-Wl$(comma)--no-undefined) \
		-Wl,-z,now,-z,relro,-z,noseparate-code,-z,initfirst,-z,noexecstack,-Bsymbolic-functions,--sort-section=name \
		-Wl,-soname,$(SONAME),--version-script=preload/exports.map $(LOW_OBJECTS) $(HIGH_OBJECTS) -o $@
$(SO_LINK): $(SO)
	$(Q)ln -sf $(notdir $(SO)) $@
$(BUILD)/explore/%.o: preload/explore/%.cpp Makefile | $(BUILD)/.compiler
	@mkdir -p $(@D)
	$(Q)$(CXX) $(LIBFLAGS) -c $< -o $@
$(BUILD)/explore/$(ARCH).o: preload/explore/$(ARCH).S preload/explore/points.def Makefile | $(BUILD)/.compiler
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(PROTECT) -g -I. -MMD -MP -c $< -o $@
$(EXPLORE_SO): $(EXPLORE_OBJECTS)
	$(Q)$(CC) -shared $(LDFLAGS) -nostartfiles -static-libgcc -Wl,-z,now,-z,relro,-z,noexecstack,-soname,$(notdir $@) $^ -o $@
$(BUILD)/explore/memory/%.o: preload/explore/memory/%.cpp Makefile | $(BUILD)/.compiler
	@mkdir -p $(@D)
	$(Q)$(CXX) $(LIBFLAGS) -c $< -o $@
$(MEMORY_SO): $(MEMORY_OBJECTS)
	$(Q)$(CC) -shared $(LDFLAGS) -nostartfiles -static-libgcc $(if $(SANITIZE),,-Wl$(comma)--no-undefined) -Wl,-z,now,-z,relro,-z,noexecstack,-soname,$(notdir $@) $^ -o $@
$(TSAN_LINKS): $(MEMORY_SO)
	@mkdir -p $(@D)
	$(Q)ln -sf ../$(notdir $<) $@
# gdb looks for its script beside the library's file, by this name.
$(SO)-gdb.py: preload/debugger/fiberthread-gdb.py
	@mkdir -p $(@D)
	$(Q)cp $< $@
$(BUILD)/obj/launcher/%.o: preload/%.cpp Makefile | $(BUILD)/.compiler
	@mkdir -p $(@D)
	$(Q)$(CXX) -std=c++20 $(OPTIMIZE) $(CPPFLAGS) $(CXXFLAGS) -g $(WARN) -I. -MMD -MP \
		-DVERSION='"$(VERSION)"' -DSONAME='"$(SONAME)"' -DMULTIARCH='"$(ARCH)-linux-gnu"' -c $< -o $@
$(LAUNCHER): $(LAUNCHER_OBJECTS) $(BUILD)/sources
	$(Q)$(CXX) $(CXXFLAGS) $(LDFLAGS) $(LAUNCHER_OBJECTS) -o $@ -pthread $(if $(CROSS),-static-libstdc++ -static-libgcc)

$(BUILD)/fiberthread.pc: preload/packaging/fiberthread.pc.in Makefile
	@mkdir -p $(@D)
	$(Q)$(INSTALLED) $< >$@

# Headers for programs. No compiler is ever told to look inside include/fiberthread, because <semaphore.h> must stay the system's.
PUBLIC_HEADERS := $(wildcard sync/include/fiberthread/*.h)

# ---- tests ----

# Unit tests are linked with the objects, so that they can call hidden functions of the library. Their threads are fibers.
$(BUILD)/tests/%_test: tests/%_test.cpp $(LOW_OBJECTS) $(HIGH_OBJECTS) Makefile
	@mkdir -p $(@D)
	$(Q)$(CXX) $(TESTFLAGS) $< $(LOW_OBJECTS) $(HIGH_OBJECTS) -o $@ -pthread $(if $(CROSS),,-lcriterion)

# Tests of layers by themselves: of `sched`, and of `sched` with `sync`, with an empty embedder and nothing else of the library. A line
# "// alone: …" in a test source says which of the two is enough for it.
ALONE_sched := $(filter $(BUILD)/obj/sched/%,$(LOW_OBJECTS))
ALONE_sync := $(LOW_OBJECTS)
alone_tests = $(patsubst tests/%.cpp,$(BUILD)/tests/alone/%,$(shell grep -lx '// alone: $(1)' tests/*_test.cpp))
# On AArch64 there is no preemption with an empty embedder, and some of these tests wait for one.
ALONE_TESTS := $(if $(filter x86_64,$(ARCH)),$(foreach layer,sched sync,$(call alone_tests,$(layer))))
define alone_rule
$(call alone_tests,$(1)): $(BUILD)/tests/alone/%: tests/%.cpp $(ALONE_$(1)) Makefile
	@mkdir -p $$(@D)
	$$(Q)$$(CXX) $$(TESTFLAGS) -DALONE $$< $$(ALONE_$(1)) -o $$@ -pthread $$(if $$(CROSS),,-lcriterion)
endef
$(foreach layer,sched sync,$(eval $(call alone_rule,$(layer))))

# Threads of these programs need not use their argument, initializers leave fields out, and deprecated functions are tested too.
PRELOADED_FLAGS = -O2 -g $(WARN) -Wno-unused-parameter -Wno-missing-field-initializers -Wno-deprecated-declarations -pthread -rdynamic
$(BUILD)/tests/preloaded/%: tests/preloaded/%.c $(wildcard tests/preloaded/*.h) Makefile | $(BUILD)/.compiler
	@mkdir -p $(@D)/private
	$(Q)$(CC) $(PRELOADED_FLAGS) $< -o $@ -ldl $$(sed -n "s|^// libs: ||p" $<)
$(BUILD)/tests/preloaded/%: tests/preloaded/%.cpp $(wildcard tests/preloaded/*.h) Makefile | $(BUILD)/.compiler
	@mkdir -p $(@D)
	$(Q)$(CXX) -std=c++20 $(PRELOADED_FLAGS) $< -o $@ -ldl $$(sed -n "s|^// libs: ||p" $<)

# The generator of programs: one program, which is run on NPTL and preloaded.
DIFFERENTIAL := $(BUILD)/tests/differential
$(DIFFERENTIAL): $(wildcard tests/differential/*.c tests/differential/*.h) Makefile | $(BUILD)/.compiler
	@mkdir -p $(@D)
	$(Q)$(CC) $(PRELOADED_FLAGS) $(filter %.c,$^) -o $@

# ---- benchmarks ----

# micro-go has the cases of micro in Go, for comparison, where Go is installed.
BENCH := $(patsubst bench-scripts/%.c,$(BUILD)/bench/%,$(wildcard bench-scripts/*.c)) $(BUILD)/bench/empty.so $(if $(shell command -v go),$(BUILD)/bench/micro-go)
$(BUILD)/bench/micro: $(wildcard bench-scripts/micro*.h)
$(BUILD)/bench/%: bench-scripts/%.c Makefile | $(BUILD)/.compiler
	@mkdir -p $(@D)
	$(Q)$(CC) -O2 -g $(WARN) -pthread $< -o $@ -lm
$(BUILD)/bench/micro-go: bench-scripts/micro.go
	@mkdir -p $(@D)
	$(Q)go build -o $@ $<
$(BUILD)/bench/empty.so: | $(BUILD)/.compiler
	@mkdir -p $(@D)
	$(Q)$(CC) -shared -x c /dev/null -o $@

# Benchmarks of the C++ interface and of the alternatives to it; see bench-scripts/api.h.
# Other packages have the headers of Boost.Fiber without the library.
API_BENCH := $(BUILD)/bench/api $(BUILD)/bench/api-std $(if $(wildcard /usr/lib/*/libboost_fiber.so /usr/lib*/libboost_fiber.so),$(BUILD)/bench/api-boost) \
	$(if $(shell command -v go),$(BUILD)/bench/api-go)
API_CXX = $(CXX) -std=c++20 -O2 -g $(WARN) -pthread $(INCLUDE) $(filter %.cpp,$^) -o $@
$(BUILD)/bench/api: bench-scripts/api.cpp $(wildcard bench-scripts/api_*.cpp) bench-scripts/api.h $(PUBLIC_HEADERS) $(SO_LINK)
	@mkdir -p $(@D)
	$(Q)$(API_CXX) -L$(BUILD) -Wl,--no-as-needed -lfiberthread -Wl,-rpath,'$$ORIGIN/..'
$(BUILD)/bench/api-std: bench-scripts/api.cpp $(wildcard bench-scripts/std_*.cpp) bench-scripts/api.h
	@mkdir -p $(@D)
	$(Q)$(API_CXX)
$(BUILD)/bench/api-boost: bench-scripts/api.cpp $(wildcard bench-scripts/boost_*.cpp) bench-scripts/api.h
	@mkdir -p $(@D)
	$(Q)$(API_CXX) -lboost_fiber -lboost_context
$(BUILD)/bench/api-go: bench-scripts/api.go $(wildcard bench-scripts/api_*.go)
	@mkdir -p $(@D)
	$(Q)go build -o $@ $^

# Examples of the C++ interface, compiled with the headers as they are installed.
EXAMPLES := $(patsubst bench-scripts/%,$(BUILD)/%,$(basename $(wildcard bench-scripts/examples/*.c bench-scripts/examples/*.cpp)))
$(BUILD)/examples/%: bench-scripts/examples/%.cpp $(PUBLIC_HEADERS) $(SO_LINK)
	@mkdir -p $(@D)
	$(Q)$(CXX) -std=c++20 -O2 -g $(WARN) -pthread -Isync/include $< -o $@ -L$(BUILD) -lfiberthread -Wl,-rpath,'$$ORIGIN/..'
$(BUILD)/examples/%: bench-scripts/examples/%.c Makefile | $(BUILD)/.compiler
	@mkdir -p $(@D)
	$(Q)$(CC) -O2 -g $(WARN) -pthread $< -o $@

.PHONY: bench-programs examples
examples: $(EXAMPLES)
bench-programs: $(BENCH) $(API_BENCH) $(EXAMPLES)

# ---- targets ----

# The preloaded tests that run under the emulator. It lacks a fork in a process with threads, and robust mutexes. signals_stack needs SS_AUTODISARM,
# and signals_wait needs the data of a timer's signal that is blocked: in both, the emulator differs from Linux. rwlock takes minutes under qemu
# 10 and later, even on NPTL.
EMULATED := tls dlopen cond barrier_spin_once preempt_stress main_spins fair slotless cpu_clock cancel_async cancel_rules cancel_foreign \
	thread_end_keys thread_end_process thread_end_unwinding exit_in_handler signal_ends_wait signals signals_ending signals_frames \
	signals_ignored signals_main_waits signals_pending signals_restart signals_retarget signals_signalfd signals_storm signals_unwind
.PHONY: emulated
emulated: $(SO) unit $(EMULATED:%=$(BUILD)/tests/preloaded/%)

.PHONY: unit preloaded test-programs
unit: $(UNIT_TESTS) $(ALONE_TESTS)
preloaded: $(PRELOADED)
test-programs: all unit examples $(PRELOADED) $(DIFFERENTIAL)

# Builds everything by each of COMPILERS, in a directory of its own, without a warning. Then tests the public headers.
.PHONY: compilers
compilers:
	@tests/deps build test
	@for c in $(or $(COMPILERS),gcc clang); do \
		echo "$$($$c --version | head -n 1)"; \
		$(MAKE) --no-print-directory CC=$$c CXX=$$(echo $$c | sed 's/gcc/g++/; s/clang/clang++/') WERROR=1 BUILD=build/$$c test-programs bench-programs || exit; \
	done
	@$(MAKE) --no-print-directory all
	@tests/run quick/install

# Checks the sources without running them. SINCE=HEAD~3: only files that differ from that commit. FILES=…: only these. `make format` formats them.
.PHONY: lint format
lint:
	@tests/deps build lint
	@LIBFLAGS='$(filter-out -MMD -MP -Werror -g,$(LIBFLAGS))' tests/lint $(FILES)
format:
	@tests/deps lint
	@tests/lint apply $(FILES)

.PHONY: deps demo test test-systems test-kernels test-glibc apps soak bench bench-servers
deps:
	@tests/deps build demo test bench
demo:
	@tests/deps build demo
	@$(MAKE) --no-print-directory all
	@tests/demo $(BUILD)
test:
	@tests/deps build test
	@$(MAKE) --no-print-directory test-programs
	@$(MAKE) --no-print-directory CROSS=aarch64 all emulated
	@! command -v clang++ >/dev/null || $(MAKE) --no-print-directory CC=clang CXX=clang++ WERROR=1 BUILD=build/clang all
	@tests/run $(TESTS)
test-systems:
	@tests/deps systems
	@tests/systems $(or $(SYSTEMS),bookworm trixie sid)
test-kernels:
	@tests/deps build preloaded kernels
	@tests/kernels $(or $(KERNELS),bookworm/cloud-amd64 trixie/cloud-amd64 sid/cloud-amd64 trixie/cloud-arm64 trixie/arm64-16k)
test-glibc:
	@tests/deps build preloaded glibc
	@$(MAKE) --no-print-directory all
	@tests/glibc $(or $(VERSIONS),2.34 2.35 2.36 2.37 2.38 2.39 2.40 2.41 2.42 2.43)
apps:
	@tests/deps build test apps
	@$(MAKE) --no-print-directory test-programs
	@TEST_TIME_LIMIT=7200 tests/run --apps $(TESTS)
soak:
	@tests/deps build test
	@$(MAKE) --no-print-directory all $(DIFFERENTIAL)
	@$(MAKE) --no-print-directory unit
	@SOAK_SECONDS=$(or $(SECONDS),600) SOAK_AT_ONCE=1 SERVER_SOAK_SECONDS=$(or $(SECONDS),300) CHANNEL_OPERATIONS=$(or $(OPERATIONS),10000000) TEST_TIME_LIMIT=100000 tests/run quick/soak quick/server_soak quick/channels
	@TWIN_SCHEDULES=$(or $(SCHEDULES),100000) TEST_TIME_LIMIT=100000 tests/run quick/explore_found
	@$(MAKE) --no-print-directory SANITIZE=address unit
	@OPERATIONS=$(or $(OPERATIONS),10000000) tests/address_soak
	@tests/deps apps
	@SEEDS=$(or $(SEEDS),100000) ROUNDS=$(or $(ROUNDS),3) TIMES=20 STRESS_SECONDS=10 TEST_TIME_LIMIT=100000 tests/run --apps _suite apps/differential stress_ng apps/java quick/guile quick/cgo
bench:
	@tests/deps build bench
	@$(MAKE) --no-print-directory all bench-programs
	@bench-scripts/run --quick $(BUILD) $(CASES)
	@bench-scripts/api --quick $(BUILD) $(CASES)
	@$(if $(CASES),,bench-scripts/all --quick $(BUILD))
bench-servers:
	@tests/deps build bench servers
	@$(MAKE) --no-print-directory all bench-programs
	@bench-scripts/servers $(BUILD) --rounds $(or $(ROUNDS),3) --seconds $(or $(SECONDS),4) $(if $(CASES),--only $(CASES))

# ---- installing ----

CMAKE_FILES := fiberthreadConfig.cmake fiberthreadConfigVersion.cmake
SO_FILE := libfiberthread.so.$(SO_VERSION)
# pkg-config and CMake have the library's directory below the prefix, so that the whole can be moved. TO_PREFIX leads back from CMake's files.
LIB_BELOW := $(patsubst $(PREFIX)/%,%,$(LIBDIR))
BELOW_PREFIX := $(if $(filter $(LIBDIR),$(LIB_BELOW)),,yes)
TO_PREFIX := $(subst $(eval) ,/,$(patsubst %,..,$(subst /, ,$(LIB_BELOW)/cmake/fiberthread)))
INSTALLED = sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(if $(BELOW_PREFIX),$${prefix}/$(LIB_BELOW),$(LIBDIR))|; s|@VERSION@|$(VERSION)|; \
	s|@CMAKE_PREFIX@|$(if $(BELOW_PREFIX),$${_fiberthread_here}/$(TO_PREFIX),$(PREFIX))|; \
	s|@CMAKE_LIBDIR@|$(if $(BELOW_PREFIX),$${_fiberthread_prefix}/$(LIB_BELOW),$(LIBDIR))|; s|@SONAME@|$(SONAME)|; s|@SO_FILE@|$(SO_FILE)|'
# Libraries that only `fiberthread explore` loads. No linker and no loader looks there.
EXPLORE_DIR := $(LIBDIR)/fiberthread-explore

# The loader finds libraries in $(LIBDIR) only by its cache, so ldconfig must run.
.PHONY: install clean
install: all
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(LIBDIR)/cmake/fiberthread $(DESTDIR)$(EXPLORE_DIR)/fiberthread-tsan $(DESTDIR)$(PREFIX)/bin \
		$(DESTDIR)$(PREFIX)/include/fiberthread $(foreach n,1 3 7,$(DESTDIR)$(PREFIX)/share/man/man$n)
	install -m 755 $(SO) $(DESTDIR)$(LIBDIR)/$(SO_FILE)
	ln -sf $(SO_FILE) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SO_FILE) $(DESTDIR)$(LIBDIR)/libfiberthread.so
	install -m 755 $(EXPLORE_SO) $(MEMORY_SO) $(DESTDIR)$(EXPLORE_DIR)/
	for n in $(TSAN_NAMES); do ln -sf ../$(notdir $(MEMORY_SO)) $(DESTDIR)$(EXPLORE_DIR)/fiberthread-tsan/$$n || exit; done
	install -m 755 $(LAUNCHER) $(DESTDIR)$(PREFIX)/bin/
	install -d $(DESTDIR)$(PREFIX)/share/gdb/auto-load$(LIBDIR)
	install -m 644 preload/debugger/fiberthread-gdb.py $(DESTDIR)$(PREFIX)/share/gdb/auto-load$(LIBDIR)/$(SO_FILE)-gdb.py
	install -D -m 644 preload/packaging/completion.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/fiberthread
	install -D -m 644 preload/packaging/completion.zsh $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_fiberthread
	install -D -m 644 preload/packaging/completion.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/fiberthread.fish
	install -m 644 $(PUBLIC_HEADERS) $(DESTDIR)$(PREFIX)/include/fiberthread/
	$(INSTALLED) preload/packaging/fiberthread.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/fiberthread.pc
	for f in $(CMAKE_FILES); do $(INSTALLED) preload/packaging/$$f.in >$(DESTDIR)$(LIBDIR)/cmake/fiberthread/$$f || exit; done
	for n in 1 3 7; do install -m 644 man/*.$$n $(DESTDIR)$(PREFIX)/share/man/man$$n/ || exit; done
	man/links $(DESTDIR)$(PREFIX)/share/man/man3
	$(if $(DESTDIR),,@ldconfig 2>/dev/null || true)
clean:
	rm -rf build

# ---- packages: preload/packaging/README.md ----

.PHONY: deb rpm dist test-packages
deb:
	@tests/deps build deb $(CROSS:%=deb_cross)
	@preload/packaging/deb $(VERSION) $(CROSS)
rpm:
	@preload/packaging/rpm $(VERSION)
dist:
	@preload/packaging/dist $(VERSION)
test-packages:
	@tests/deps systems
	@tests/packages $(or $(SYSTEMS),bookworm trixie)

-include $(LOW_OBJECTS:.o=.d) $(EXPLORE_OBJECTS:.o=.d) $(MEMORY_OBJECTS:.o=.d) $(HIGH_OBJECTS:.o=.d) $(LAUNCHER_OBJECTS:.o=.d) $(UNIT_TESTS:=.d) $(ALONE_TESTS:=.d)
