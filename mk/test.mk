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
	$$(Q)$$(CC) $$(LDBASE) $$(LDFLAGS) -o $$@ $(call test_objs,tests/unit/$(call us,$1)) $(call link_of,$1) $$(LIBS) $(if $(filter cli,$1),$$(CLI_LIBS))
.PHONY: test-unit-$(call us,$1)
test-unit-$(call us,$1): $(B)/test/unit_$(call us,$1)
	$$< $$(ARGS)
endef
$(foreach d,$(UNITS),$(eval $(call unit_rule,$d)))

# The others link the whole library.
KINDS := $(foreach k,kern stage cover golden api fault,$(if $(wildcard tests/$k/*.c),$k))
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

# Fuzz targets. Without FUZZ=1 they are linked with replay.c, which runs the committed corpus.
FUZZERS := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
FUZZ_MAIN := $(if $(FUZZ),,$(B)/obj/tests/fuzz/replay.o)
define fuzz_rule
$(B)/test/fuzz_$1: $(B)/obj/tests/fuzz/fuzz_$1.o $(FUZZ_MAIN) $(call link_of,api)
	@mkdir -p $$(@D)
	$$(call say,LD)
	$$(Q)$$(CC) $$(LDBASE) $$(LDFLAGS) $(if $(FUZZ),-fsanitize=fuzzer) -o $$@ $(B)/obj/tests/fuzz/fuzz_$1.o $(FUZZ_MAIN) $(call link_of,api) $$(LIBS)
endef
$(foreach f,$(FUZZERS),$(eval $(call fuzz_rule,$f)))

# ---- the suite: pairs "name command" for tests/suite.sh -----------------------------------------
C_TESTS := $(foreach d,$(UNITS),unit_$(call us,$d)) $(KINDS)
C_BINS := $(C_TESTS:%=$(B)/test/%) $(FUZZERS:%=$(B)/test/fuzz_%)
E2E := $(sort $(wildcard tests/e2e/*.py))
C_SUITE = $(foreach t,$(C_TESTS),$t '$(B)/test/$t') \
          $(foreach f,$(FUZZERS),fuzz_$f '$(B)/test/fuzz_$f tests/fuzz/corpus/$f')
E2E_SUITE = $(foreach e,$(E2E),e2e_$(basename $(notdir $e)) '$(PYTHON) $e')
LINT_SUITE = $(foreach l,deps style symbols opts headers,lint_$l 'sh tests/lint/$l.sh $(B)')
SUITE_ENV = HETERO=$(abspath $(B)/hetero) CC='$(CC)' CXX='$(CXX)' TEST_TIMEOUT=$(TEST_TIMEOUT)

.PHONY: test test-full test-c test-e2e lint check fuzz bench format test-bins
test-bins: $(C_BINS)
test: $(C_BINS) $(B)/hetero $(B)/libhetero.so.0
	@$(SUITE_ENV) sh tests/suite.sh $(B)/log $(C_SUITE) $(E2E_SUITE) $(LINT_SUITE)
test-full: $(C_BINS) $(B)/hetero $(B)/libhetero.so.0
	@$(SUITE_ENV) HETERO_TEST_FULL=1 TEST_TIMEOUT=7200 sh tests/suite.sh $(B)/log $(C_SUITE) $(E2E_SUITE) $(LINT_SUITE)
test-c: $(C_BINS)
	@$(SUITE_ENV) sh tests/suite.sh $(B)/log $(C_SUITE)
test-e2e: $(B)/hetero
	@$(SUITE_ENV) sh tests/suite.sh $(B)/log $(E2E_SUITE)
lint: $(B)/hetero $(B)/libhetero.so.0
	@$(SUITE_ENV) sh tests/suite.sh $(B)/log $(LINT_SUITE)
