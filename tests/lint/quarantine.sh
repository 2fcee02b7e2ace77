#!/bin/sh
# quarantine.sh BUILD - simulations stay apart: nothing but cli may include evid/sim (or report, which
# draws them), only src/cli/sim.c does, and neither the archive nor the shared library holds a symbol
# or a name of theirs. Tests itself on an object that is known to hold both.
. tests/lint/lib.sh
B=${1:-build}

who() { awk -F: -v d="$1" '$1 !~ /^#/ { n = split($2, a, " "); for (i = 1; i <= n; i++) if (a[i] == d) print $1 }' src/DEPS; }
check 'src/DEPS grants evid/sim to cli alone' "$(who evid/sim | grep -v '^cli$')"
check 'src/DEPS grants report to cli alone' "$(who report | grep -v '^cli$')"
includes() { grep -rlE '^[ 	]*#[ 	]*include[ 	]+"evid/sim/' src | grep -v '^src/evid/sim/'; }
check 'src/cli/sim.c alone includes evid/sim' "$(includes | grep -v '^src/cli/sim.c$')"
[ -n "$(includes)" ] && pass || fail 'self-test: no include of evid/sim is seen'
# The role's name is part of the trust root; the type of a record and of its statement is not known.
names='hetero/sim/|hetero:simulation'
check 'no source of the library knows the type of a simulation' \
    "$(grep -rnE "$names" src | grep -vE '^src/(cli|report|evid/sim)/')"

if ! [ -f "$B/libhetero.a" ] || ! [ -f "$B/libhetero.so.0" ] || ! [ -f "$B/lib/evid_sim.a" ]; then
    skip "quarantine: libhetero and the program are not built in $B (make lint builds them)"
    finish
    exit
fi
symbols() { nm -g "$1" 2>/dev/null | awk '{ print $NF }' | grep -E '^(ht_sim_|sim__|ht_report_|report__)'; }
texts() { grep -aoE "$names" "$1" | sort -u; }
[ -n "$(symbols "$B/lib/evid_sim.a")" ] && pass || fail 'self-test: no symbol of a simulation is seen'
[ -n "$(texts "$B/lib/evid_sim.a")" ] && pass || fail 'self-test: no name of a simulation is seen'
[ -n "$(nm -g "$B/libhetero.a" 2>/dev/null | grep ht_bundle_verify)" ] && pass || fail 'self-test: nm shows nothing'
for lib in libhetero.a libhetero.so.0; do
    check "$lib holds no symbol of a simulation" "$(symbols "$B/$lib")"
    check "$lib holds no name of a simulation" "$(texts "$B/$lib")"
done
finish
