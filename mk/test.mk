# test.mk - test programs, the suite, lint, fuzzing.
FUZZ_SECONDS ?= 60
PYTHON ?= python3
TEST_FLAGS := -Itests
TEST_TIMEOUT ?= 1500

test_objs = $(patsubst %.c,$(B)/obj/%.o,$(sort $(wildcard $1/*.c))) $(B)/obj/tests/run.o
$(B)/obj/tests/%: CPPFLAGS += $(TEST_FLAGS)

# Unit tests of a directory link only what src/DEPS lets that directory reach.
UNITS := $(foreach d,$(DIRS),$(if $(wildcard tests/unit/$(call us,$d)/*.c),$d))
define unit_rule
$(B)/test/unit_$(call us,$1): $(call test_objs,tests/unit/$(call us,$1)) $(call link_of,$1)
	@mkdir -p $$(@D)
	$$(call say,LD)
	$$(Q)$$(CC) $$(LDBASE) $$(LDFLAGS) -o $$@ $(call test_objs,tests/unit/$(call us,$1)) $(call link_of,$1) $$(LIBS) $(if $(filter cli,$1),$$(CLI_LIBS)) $(if $(filter cli serve,$1),$$(SERVE_LIBS))
.PHONY: test-unit-$(call us,$1)
test-unit-$(call us,$1): $(B)/test/unit_$(call us,$1)
	$$< $$(ARGS)
endef
$(foreach d,$(UNITS),$(eval $(call unit_rule,$d)))

# The others link the whole library.
KINDS := $(foreach k,kern stage golden api fault,$(if $(wildcard tests/$k/*.c),$k))
define kind_rule
$(B)/test/$1: $(call test_objs,tests/$1) $(call link_of,api)
	@mkdir -p $$(@D)
	$$(call say,LD)
	$$(Q)$$(CC) $$(LDBASE) $$(LDFLAGS) -o $$@ $(call test_objs,tests/$1) $(call link_of,api) $$(LIBS)
.PHONY: test-$1
test-$1: $(B)/test/$1
	$$< $$(ARGS)
endef
$(foreach k,$(KINDS),$(eval $(call kind_rule,$k)))

# The models of tests/data/golden/own are seeded noise and no part of the tree: a script has their bytes. It
# runs every time, since what is damaged has no time stamp that says so; what is intact it leaves alone.
.PHONY: own-models
own-models:
	$(Q)$(PYTHON) tests/oracle/own_model.py $(B)/golden/own
$(B)/test/golden: | own-models

# A stand-in for the CUDA driver that computes on the host (tests/unit/backend_cuda/card.h): with it
# the engine's tests run where there is no GPU, if the build has kernels.
CARD := $(B)/test/card/libcuda.so.1
CARD_OBJS := $(B)/obj/tests/unit/backend_cuda/card.o $(B)/obj/tests/unit/backend_cuda/card_tensor.o
$(CARD): $(CARD_OBJS) $(call link_of,quant)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDBASE) $(LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $^ $(LIBS) -lm

# Fuzz targets. Without FUZZ=1 they are linked with replay.c, which runs the committed corpus.
FUZZERS := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
FUZZ_MAIN := $(if $(FUZZ),,$(B)/obj/tests/fuzz/replay.o)
define fuzz_rule
$(B)/test/fuzz_$1: $(B)/obj/tests/fuzz/fuzz_$1.o $(FUZZ_MAIN) $(call link_of,serve)
	@mkdir -p $$(@D)
	$$(call say,LD)
	$$(Q)$$(CC) $$(LDBASE) $$(LDFLAGS) $(if $(FUZZ),-fsanitize=fuzzer) -o $$@ $(B)/obj/tests/fuzz/fuzz_$1.o $(FUZZ_MAIN) $(call link_of,serve) $$(LIBS) $$(SERVE_LIBS)
endef
$(foreach f,$(FUZZERS),$(eval $(call fuzz_rule,$f)))

# ---- the verifier with numbered checks: each is switched off in turn by tests/e2e/evid_switch.py --------
SWITCH_SRC := $(addprefix src/evid/,amend.c bundle_quality.c bundle_raw.c bundle_read.c bundle_samples.c compare.c compare_read.c \
                dsse.c journal.c manifest.c policy.c quality.c sched.c sched_read.c schema.c scope.c stat.c trust.c verdict.c verify.c) src/core/json.c
SWITCH_OBJS := $(patsubst %.c,$(B)/switch/%.o,$(notdir $(SWITCH_SRC)))
$(B)/switch/checks.json: tests/switch/instrument.py $(SWITCH_SRC)
	$(call say,GEN)
	$(Q)$(PYTHON) $< $(B)/switch $(SWITCH_SRC)
$(SWITCH_OBJS): $(B)/switch/%.o: $(B)/switch/checks.json $(B)/flags
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS_ALL) -MMD -MP -c -o $@ $(B)/switch/$*.c
$(B)/test/check_switch: $(call test_objs,tests/switch) $(SWITCH_OBJS) $(call link_of,evid)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDBASE) $(LDFLAGS) -o $@ $(B)/obj/tests/switch/main.o $(SWITCH_OBJS) $(call link_of,evid) $(LIBS)

# ---- the suite: pairs "name command" for tests/suite.sh -----------------------------------------
C_TESTS := $(foreach d,$(UNITS),unit_$(call us,$d)) $(KINDS)
C_BINS := $(C_TESTS:%=$(B)/test/%) $(FUZZERS:%=$(B)/test/fuzz_%) $(CARD)
E2E := $(sort $(wildcard tests/e2e/*.py))
C_SUITE = $(foreach t,$(C_TESTS),$t '$(B)/test/$t') \
          $(foreach f,$(FUZZERS),fuzz_$f '$(B)/test/fuzz_$f tests/fuzz/corpus/$f')
# Scripts of the official Python clients; run.sh installs these into $(B)/clients once.
CLIENTS := openai_client anthropic_client ollama_client litellm_client grammar_oracle requests_fuzz page
CLIENT_SUITE = $(foreach c,$(CLIENTS),clients_$c 'sh tests/clients/run.sh $(abspath $(B)) $c.py')
E2E_SUITE = $(foreach e,$(E2E),e2e_$(basename $(notdir $e)) '$(PYTHON) $e')
LINT_SUITE = $(foreach l,deps style symbols opts quarantine attacks,lint_$l 'sh tests/lint/$l.sh $(B)') \
             api_headers 'sh tests/api/headers.sh $(B)' api_install 'sh tests/api/install.sh $(B)'
SUITE_ENV = HETERO=$(abspath $(B)/hetero) CC='$(CC)' CXX='$(CXX)' LIBS='$(LIBS)' MAKEFLAGS= \
            TEST_TIMEOUT=$(TEST_TIMEOUT) CHECK_SWITCH=$(abspath $(B)/test/check_switch)
ALL_BUILT = $(C_BINS) $(B)/test/check_switch $(B)/hetero $(B)/libhetero.a $(B)/libhetero.so.0

.PHONY: test test-full test-c test-e2e test-clients lint test-bins
test-bins: $(C_BINS)
test: $(ALL_BUILT)
	@$(SUITE_ENV) sh tests/suite.sh $(B)/log $(C_SUITE) $(E2E_SUITE) $(CLIENT_SUITE) $(LINT_SUITE)
test-full: $(ALL_BUILT)
	@$(SUITE_ENV) HETERO_TEST_FULL=1 TEST_TIMEOUT=7200 sh tests/suite.sh $(B)/log \
	    $(C_SUITE) $(E2E_SUITE) $(CLIENT_SUITE) $(LINT_SUITE)
test-c: $(C_BINS)
	@$(SUITE_ENV) sh tests/suite.sh $(B)/log $(C_SUITE)
test-e2e: $(ALL_BUILT)
	@$(SUITE_ENV) sh tests/suite.sh $(B)/log $(E2E_SUITE)
lint: $(ALL_BUILT)
	@$(SUITE_ENV) sh tests/suite.sh $(B)/log $(LINT_SUITE)

# ---- make check: lint, formatting, both compilers without a warning, sanitizers ------------------
# Each build has a directory of its own below B, so a second check compiles only what changed.
# TSan runs what starts threads: core (the team), whatever drives the engines through the API, and the server with
# 120 of the 2,000 requests of its load test (LOAD_REQUESTS; all of them take over an hour).
SUB = $(MAKE) --no-print-directory B=$(B)/check-
THREAD_TESTS := unit_core $(filter unit_backend_cpu unit_kv unit_api,$(C_TESTS))
ASAN_OPTIONS ?= detect_stack_use_after_return=1:strict_string_checks=1:detect_leaks=1
.PHONY: check build-gcc build-clang test-asan test-tsan
build-gcc:
	+@$(SUB)gcc CC=gcc WERROR=1 SAN= test-bins hetero-only
build-clang:
	+@$(SUB)clang CC=clang WERROR=1 SAN= test-bins hetero-only
test-asan:
	+@ASAN_OPTIONS='$(ASAN_OPTIONS)' UBSAN_OPTIONS=print_stacktrace=1 \
	    $(SUB)asan CC=clang SAN=address,undefined OPT=-O1 TEST_TIMEOUT=3600 test-c
test-tsan:
	+@TSAN_OPTIONS=halt_on_error=1 $(SUB)tsan CC=clang SAN=thread OPT=-O1 test-threads
test-threads: $(foreach t,$(THREAD_TESTS),$(B)/test/$t) $(B)/hetero
	@$(SUITE_ENV) sh tests/suite.sh $(B)/log $(foreach t,$(THREAD_TESTS),$t '$(B)/test/$t') \
	    serve_load 'LOAD_REQUESTS=$(or $(LOAD_REQUESTS),120) $(PYTHON) tests/e2e/serve_load.py'
.PHONY: hetero-only test-threads
hetero-only: $(B)/hetero
check: $(ALL_BUILT)
	+@$(SUITE_ENV) TEST_TIMEOUT=7200 sh tests/suite.sh $(B)/log $(LINT_SUITE) \
	    lint_format 'sh tests/lint/format.sh' \
	    build_gcc 'sh tests/once.sh $(MAKE) build-gcc' build_clang 'sh tests/once.sh $(MAKE) build-clang' \
	    asan '$(MAKE) --no-print-directory test-asan' tsan '$(MAKE) --no-print-directory test-tsan'

# ---- fuzzing --------------------------------------------------------------------------------------
# clang's libFuzzer with ASan and UBSan; inputs found go to $(B)/fuzz/new, crashes to $(B)/fuzz/crash.
# Every crash that was fixed becomes a file of tests/fuzz/corpus/<name>/, replayed by `make test`.
FUZZ_ONLY ?= $(FUZZERS)
.PHONY: fuzz fuzz-bins format bench
fuzz-bins: $(FUZZERS:%=$(B)/test/fuzz_%)
fuzz:
	+@$(SUB)fuzz CC=clang FUZZ=1 SAN=fuzzer-no-link,address,undefined OPT=-O1 fuzz-bins
	@sh tests/fuzz/all.sh $(B)/check-fuzz $(FUZZ_SECONDS) $(FUZZ_ONLY)

format:
	clang-format -i $$(git ls-files 'src/*.c' 'tests/*.c' 'bench/*.c')

# ---- speed: the table of `hetero bench`, then the programs of bench/ ------------------------------
MODEL ?=
BENCHES := $(patsubst bench/%.c,%,$(sort $(wildcard bench/*.c)))
define bench_rule
$(B)/bench/$1: $(B)/obj/bench/$1.o $(call link_of,api)
	@mkdir -p $$(@D)
	$$(call say,LD)
	$$(Q)$$(CC) $$(LDBASE) $$(LDFLAGS) -o $$@ $(B)/obj/bench/$1.o $(call link_of,api) $$(LIBS)
endef
$(foreach b,$(BENCHES),$(eval $(call bench_rule,$b)))
bench-bins: $(BENCHES:%=$(B)/bench/%)
# Those that need a model or another program's build are run by name (their first comment says how).
bench: $(B)/hetero bench-bins
	$(B)/hetero bench $(MODEL)
	$(B)/bench/kern
	@echo 'by name, with arguments: $(filter-out $(B)/bench/kern,$(BENCHES:%=$(B)/bench/%)) bench/*.py'
