# install.mk - installation, and `make run` for a fresh machine.
PREFIX ?= /usr/local
DESTDIR ?=
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
INSTALL ?= install
DEFAULT_MODEL := models/tale-9m-f16.gguf
# Empty: the built-in request for a story, through the chat template.
PROMPT ?=

.PHONY: run install uninstall documents docs
# What is missing is installed first, then make starts anew: the compiler may be among it.
run:
	@sh mk/need.sh build
	+@$(MAKE) --no-print-directory hetero
	./hetero run $(if $(PROMPT),-p '$(PROMPT)') $(RUN_ARGS)

# Man pages and completions are made from the option table by the program itself.
COMMANDS = $(shell sed -nE 's/^ *\[HT_CMD_[A-Z_]+\] = \{"([a-z-]+)".*/\1/p' src/core/opt_table.c)
documents: $(B)/hetero
	$(Q)mkdir -p $(B)/doc
	$(Q)$(B)/hetero help --man > $(B)/doc/hetero.1
	$(Q)for c in $(COMMANDS); do $(B)/hetero help $$c --man > $(B)/doc/hetero-$$c.1 || exit 1; done
	$(Q)for s in bash zsh fish; do $(B)/hetero help --completion $$s > $(B)/doc/completion.$$s || exit 1; done

# The committed copies; tests/lint/opts.sh tells when they are old.
docs: documents
	mkdir -p docs/man docs/completions
	cp $(B)/doc/*.1 docs/man/
	cp $(B)/doc/completion.bash docs/completions/hetero.bash
	cp $(B)/doc/completion.fish docs/completions/hetero.fish
	cp $(B)/doc/completion.zsh docs/completions/_hetero

$(B)/hetero.pc: Makefile mk/install.mk FORCE
	$(Q)printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' \
	  'Name: hetero' 'Description: Local LLM inference runtime' 'Version: $(VERSION)' \
	  'Requires.private: libcrypto libutf8proc libpcre2-8' 'Libs: -L$${libdir} -lhetero' \
	  'Libs.private: -lm -pthread' 'Cflags: -I$${includedir}' > $@
.PHONY: FORCE
FORCE:

install: $(B)/hetero $(B)/libhetero.a $(B)/libhetero.so.0 $(B)/hetero.pc documents
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR) \
	  $(DESTDIR)$(DATADIR)/hetero/models $(DESTDIR)$(DATADIR)/man/man1 \
	  $(DESTDIR)$(DATADIR)/bash-completion/completions $(DESTDIR)$(DATADIR)/zsh/site-functions \
	  $(DESTDIR)$(DATADIR)/fish/vendor_completions.d
	$(INSTALL) -m 755 $(B)/hetero $(DESTDIR)$(BINDIR)/hetero
	$(INSTALL) -m 644 $(B)/libhetero.a $(DESTDIR)$(LIBDIR)/libhetero.a
	$(INSTALL) -m 755 $(B)/libhetero.so.0 $(DESTDIR)$(LIBDIR)/libhetero.so.0
	ln -sf libhetero.so.0 $(DESTDIR)$(LIBDIR)/libhetero.so
	$(INSTALL) -m 644 include/hetero.h $(DESTDIR)$(INCLUDEDIR)/hetero.h
	$(INSTALL) -m 644 $(B)/hetero.pc $(DESTDIR)$(LIBDIR)/pkgconfig/hetero.pc
	$(INSTALL) -m 644 $(DEFAULT_MODEL) $(DESTDIR)$(DATADIR)/hetero/models/
	$(INSTALL) -m 644 $(B)/doc/*.1 $(DESTDIR)$(DATADIR)/man/man1/
	$(INSTALL) -m 644 $(B)/doc/completion.bash $(DESTDIR)$(DATADIR)/bash-completion/completions/hetero
	$(INSTALL) -m 644 $(B)/doc/completion.zsh $(DESTDIR)$(DATADIR)/zsh/site-functions/_hetero
	$(INSTALL) -m 644 $(B)/doc/completion.fish $(DESTDIR)$(DATADIR)/fish/vendor_completions.d/hetero.fish

uninstall:
	rm -f $(DESTDIR)$(BINDIR)/hetero $(DESTDIR)$(LIBDIR)/libhetero.a $(DESTDIR)$(LIBDIR)/libhetero.so* \
	  $(DESTDIR)$(INCLUDEDIR)/hetero.h $(DESTDIR)$(LIBDIR)/pkgconfig/hetero.pc \
	  $(DESTDIR)$(DATADIR)/man/man1/hetero.1 $(DESTDIR)$(DATADIR)/man/man1/hetero-*.1 \
	  $(DESTDIR)$(DATADIR)/bash-completion/completions/hetero \
	  $(DESTDIR)$(DATADIR)/zsh/site-functions/_hetero \
	  $(DESTDIR)$(DATADIR)/fish/vendor_completions.d/hetero.fish
	rm -rf $(DESTDIR)$(DATADIR)/hetero
