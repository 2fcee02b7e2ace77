# config.mk - tool chain and flags.
ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
AR ?= ar
OPT ?= -O2

# Products and sums are never contracted or reordered by the compiler: the reduction order is part of
# what a run claims (product.md 4), so kernels that want a fused multiply-add call fma themselves.
# -fno-math-errno only drops the errno side effect. No -ffast-math, no -march=native.
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Wstrict-prototypes -Wmissing-prototypes
BASE := -std=c11 $(OPT) -g -fPIC -fno-semantic-interposition -ffp-contract=off -fno-math-errno \
        -D_GNU_SOURCE -ffile-prefix-map=$(CURDIR)=. -Iinclude -Isrc -I$(B)/gen
LDBASE := -pthread -Wl,--as-needed

ifneq ($(SAN),)
BASE += -fsanitize=$(SAN) -fno-sanitize-recover=undefined -fno-omit-frame-pointer
LDBASE += -fsanitize=$(SAN)
else
BASE += -fstack-protector-strong $(if $(filter -O0,$(OPT)),,-D_FORTIFY_SOURCE=2)
LDBASE += -Wl,-z,relro,-z,now
endif
ifneq ($(WERROR),)
WARN += -Werror
endif

CFLAGS_ALL = $(BASE) -pthread $(WARN) $(CPPFLAGS) $(CFLAGS)
# Plain -l flags: the libraries are in the compiler's own paths on Debian; override for other places.
LIBS ?= -lcrypto -lutf8proc -lpcre2-8 -lm
CLI_LIBS ?= -ledit
SERVE_LIBS ?= -lmicrohttpd

ifeq ($(V),)
Q := @
say = @echo '  $1 $(patsubst $(B)/%,%,$@)'
else
Q :=
say = @:
endif
