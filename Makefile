# Makefile - the only build. Every knob is a variable on the command line:
#   B=DIR      where everything built goes (default build); two B never disturb each other
#   CC=clang   the compiler; WERROR=1 makes warnings errors; SAN=address,undefined a sanitizer build
#   V=1        show commands
# Adding a .c file needs no edit here: sources are found by wildcard, directories in src/DEPS.
VERSION := 0.1.0
B ?= build
ifneq ($(words $(B)),1)
$(error B='$(B)': make takes the words of a name for several files; name one folder without a space)
endif

.PHONY: all
all: hetero

include mk/config.mk
include mk/isa.mk
include mk/src.mk
include mk/cuda.mk
include mk/test.mk
include mk/graph.mk
include mk/install.mk

.PHONY: hetero clean help
# The program, also beside the Makefile for convenience. Always the B of this call.
hetero: $(B)/hetero
	@cmp -s $< $@ || install -m 755 $< $@

clean:
	rm -rf build build-* hetero
	$(if $(filter-out build,$(B)),rm -rf $(B))

help:
	@echo 'make            build ./hetero and $(B)/libhetero.a'
	@echo 'make run        install what is missing, build, let the embedded model tell a story'
	@echo 'make test       short tier of tests        make test-full    everything'
	@echo 'make check      lint, both compilers, sanitizers'
	@echo 'make fuzz       every fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS) each'
	@echo 'make bench      speed table of the embedded model (MODEL=FILE for another)'
	@echo 'make install    DESTDIR= PREFIX=$(PREFIX)'
	@echo 'make test-unit-<dir> | test-kern | test-stage | ...   one test program'
