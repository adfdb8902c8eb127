# SPDX-License-Identifier: MIT
# Builds tests of one folder of glibc's source against the installed libc. This takes the place of glibc's own Rules, which the makefile of
# each folder includes: so that makefile's lists of tests and modules, options, arguments and variables hold here. The caller sets:
#   objpfx  where to build the folder, with a slash at its end
#   names   the tests to build. A file NAME.out has the variables of a test in its first line, and the arguments in its second line
#   cpu     x86_64 or aarch64
# `suite-list` prints the folder's tests, each with its source.
sysdirs := $(wildcard $(addprefix ../sysdeps/,unix/sysv/linux/$(cpu)/64 unix/sysv/linux/$(cpu) $(if $(filter x86_64,$(cpu)),unix/sysv/linux/x86) \
	unix/sysv/linux $(cpu)/nptl nptl pthread $(cpu) $(if $(filter x86_64,$(cpu)),x86/nptl x86) gnu posix))
include $(wildcard $(sysdirs:%=%/Makefile))
vpath %.c $(sysdirs)
vpath %.cc $(sysdirs)
.SECONDEXPANSION:
.SECONDARY:

# The headers of the installed libc come first. Those of the source serve for what is not installed.
flags = -O2 -g -w -D_GNU_SOURCE -include limits.h -include ../include/libc-symbols.h -DMODULE_NAME=testsuite -DMODULE_testsuite=1 -DTIMEOUTFACTOR=1 '-Dlibc_hidden_proto(...)=' '-Drtld_hidden_proto(...)=' -Dattribute_hidden= -Dweak_function='__attribute__((weak))' -Dattribute_tls_model_ie= -DPTHREAD_IN_LIBC=1 \
	-D__attribute_optimization_barrier__='__attribute__((noinline, noclone))' -Wno-error=implicit-function-declaration \
	-U_FORTIFY_SOURCE -I. $(sysdirs:%=-idirafter %) $(sysdirs:%=-idirafter %/include) -idirafter ../sysdeps/generic -idirafter .. -idirafter ../include $(CFLAGS-$(<F)) \
	$(CFLAGS-$(@F)) $(CPPFLAGS-$(<F))
support := $(dir $(objpfx:/=))support/libsupport.a
host-test-program-cmd = $(@:.out=)
compile-command.c = $(CC) $(flags) $(if $(filter %.os,$@),-fPIC) -c $< -o $@

# Some tests depend on libraries of the build. These are the installed ones, which are linked anyway.
installed := $(addprefix $(common-objpfx),rt/librt.so resolv/libresolv.so resolv/libanl.so dlfcn/libdl.so math/libm.so nptl/libpthread.so)
$(installed):
	@mkdir -p $(@D) && touch $@

# Static programs cannot be preloaded.
all-tests := $(sort $(filter-out $(tests-static) $(xtests-static) $(tests-unsupported) $(tests-container) %-static,$(tests) $(tests-internal) $(xtests)))
suite-list:
	@$(foreach t,$(all-tests),echo $(t) $(firstword $(wildcard $t.c $t.cc $(foreach d,$(sysdirs),$d/$t.c $d/$t.cc)));)
suite: $(names:%=$(objpfx)%.out)
$(objpfx)%.out: $(objpfx)%
	@printf '%s\n' '$($*-ENV)' '$($*-ARGS)' >$@
$(objpfx)%: $(objpfx)%.o $(support)
	$(CC) -o $@ $(LDFLAGS-$(@F)) $(filter %.o,$^) $(filter-out $(installed),$(filter %.so,$^)) $(support) $(LDLIBS-$(@F)) -lm -lresolv -lrt -lpthread -ldl
$(objpfx)%.so: $(objpfx)%.os
	$(CC) -shared -o $@ $(LDFLAGS-$(@F)) $(filter %.os %.o,$^) $(filter-out $(installed),$(filter %.so,$^)) $(LDLIBS-$(@F)) $(support)
$(objpfx)%.o: %.c
	$(compile-command.c)
$(objpfx)%.os: %.c
	$(compile-command.c)
$(objpfx)%.o: %.cc
	$(CXX) $(flags) -c $< -o $@
$(objpfx)%.os: %.cc
	$(CXX) $(flags) -fPIC -c $< -o $@

support-objects := $(addprefix $(objpfx),$(libsupport-routines:=.os))
suite-support: $(support-objects)
suite-archive:
	ar rcs $(support) $(wildcard $(support-objects))
