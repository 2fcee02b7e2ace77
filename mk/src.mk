# src.mk - one archive per directory of src/DEPS, the library and the program.
DIRS := $(shell sed -n 's/^\([a-z][a-z0-9_/]*\):.*/\1/p' src/DEPS)
us = $(subst /,_,$1)
rev = $(if $1,$(call rev,$(wordlist 2,$(words $1),$1)) $(firstword $1))
SRC_DIRS_backend/cpu := $(addprefix src/backend/cpu/,$(ISAS))
src_of = $(sort $(foreach d,src/$1 $(SRC_DIRS_$1),$(wildcard $d/*.c)))
obj_of = $(patsubst %.c,$(B)/obj/%.o,$(call src_of,$1))

# CLOS_<dir>: the directory and all it may reach. DEPS names a directory after those it includes, so
# one pass suffices; linking in reverse order without a group fails on a cycle.
define dir_vars
DEPS_$1 := $$(shell sed -n 's|^$1:||p' src/DEPS)
CLOS_$1 := $$(sort $1 $$(foreach e,$$(DEPS_$1),$$(CLOS_$$e)))
endef
$(foreach d,$(DIRS),$(eval $(call dir_vars,$d)))
archive = $(B)/lib/$(call us,$1).a
# Archives a program of directory $1 links, in link order.
link_of = $(foreach d,$(call rev,$(DIRS)),$(if $(filter $d,$(CLOS_$1)),$(call archive,$d)))

# Simulations stay out of the library, and so does what draws them (tests/lint/quarantine.sh).
LIB_DIRS := $(filter-out cli evid/sim report reply serve,$(DIRS))
LIB_OBJS := $(foreach d,$(LIB_DIRS),$(call obj_of,$d))

# ---- stamps: rebuilt contents only when they change ---------------------------------------------
stamp = $(shell mkdir -p $(dir $1) && printf '%s\n' '$(subst ','\'',$2)' | cmp -s - $1 || \
                printf '%s\n' '$(subst ','\'',$2)' > $1)
$(call stamp,$(B)/flags,$(shell $(CC) --version | head -1) $(CFLAGS_ALL) $(foreach i,$(ISAS),$i: $(ISA_FLAGS_$i)))
$(call stamp,$(B)/sources,$(foreach d,$(DIRS),$(call src_of,$d)))
# The commit, where this is a git checkout: no time, no path, so equal sources give equal binaries.
COMMIT := $(if $(wildcard .git),$(shell git describe --always --dirty --abbrev=7 --exclude='*' 2>/dev/null))
# The flags too, without paths: what a bundle says of its tool chain.
$(shell mkdir -p $(B)/gen && { echo '#define HT_VERSION "$(VERSION)"'; \
        echo '#define HT_FLAGS "$(filter-out -I% -ffile-prefix-map=%,$(subst ",,$(CFLAGS_ALL)))"'; \
        $(if $(COMMIT),echo '#define HT_COMMIT "$(COMMIT)"';) } > $(B)/gen/version.h.new; \
        cmp -s $(B)/gen/version.h.new $(B)/gen/version.h || cp $(B)/gen/version.h.new $(B)/gen/version.h)

# ---- rules ---------------------------------------------------------------------------------------
$(B)/obj/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS_ALL) $(call isa_flags,$<) -MMD -MP -c -o $@ $<

# What the assembler takes into an object.
$(B)/obj/src/serve/page.o: src/serve/page.html

define archive_rule
$(call archive,$1): $(call obj_of,$1) $(B)/sources
	@mkdir -p $$(@D)
	$$(call say,AR)
	$$(Q)rm -f $$@ && $$(AR) rcsD $$@ $(call obj_of,$1)
endef
$(foreach d,$(DIRS),$(eval $(call archive_rule,$d)))

$(B)/libhetero.a: $(LIB_OBJS) $(B)/sources
	$(call say,AR)
	$(Q)rm -f $@ && $(AR) rcsD $@ $(LIB_OBJS)

$(B)/hetero: $(call link_of,cli)
	$(call say,LD)
	$(Q)$(CC) $(LDBASE) $(LDFLAGS) -o $@ $(call obj_of,cli) $(filter-out $(call archive,cli),$^) $(LIBS) $(CLI_LIBS) $(SERVE_LIBS)
all: $(B)/libhetero.a

# Exports of the shared library: the functions that hetero.h declares, nothing else.
$(B)/gen/hetero.map: include/hetero.h
	@mkdir -p $(@D)
	$(Q){ echo 'HETERO_0 {'; echo '  global:'; \
	  grep -oE '\bht_[a-z0-9_]+ ?\(' $< | sed 's/ *(/;/; s/^/    /' | sort -u; \
	  echo '  local: *;'; echo '};'; } > $@
$(B)/libhetero.so.0: $(LIB_OBJS) $(B)/gen/hetero.map
	$(call say,LD)
	$(Q)$(CC) -shared $(LDBASE) $(LDFLAGS) -Wl,-soname,libhetero.so.0 -Wl,-z,defs \
	  -Wl,--version-script=$(B)/gen/hetero.map -o $@ $(LIB_OBJS) $(LIBS)

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
