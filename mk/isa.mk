# isa.mk - one line per instruction set: src/backend/cpu/<isa>/ is compiled with ISA_FLAGS_<isa>.
# `generic` has none. A directory that does not exist, or is not for this machine type, is skipped.
# -O3: these files are loops over columns and rows that want full vectorisation; values do not change.
# Not under a sanitizer: instrumented -O3 takes minutes a file.
ISA_OPT := $(if $(SAN),-DCPU_INSTRUMENTED,-O3)
# -fno-var-tracking: in these long straight functions gcc spends half its time on debug locations.
ISA_FLAGS_generic := $(ISA_OPT)
ISA_FLAGS_avx2    := $(ISA_OPT) -fno-var-tracking -mavx2 -mfma -mf16c -mbmi -mbmi2 -mlzcnt
ISA_FLAGS_avx512  := $(ISA_FLAGS_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl

MACHINE := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
ISAS := generic $(if $(filter x86_64,$(MACHINE)),avx2 avx512)
# Flags for source file $1: those of its ISA directory, or nothing.
isa_flags = $(ISA_FLAGS_$(patsubst src/backend/cpu/%/,%,$(filter src/backend/cpu/%/,$(dir $1))))

# For scripts that compile a single file.
.PHONY: print-isa-%
print-isa-%:
	@echo $(ISA_FLAGS_$*)
