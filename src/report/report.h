/* report.h - one static HTML page from the documents of a bundle, a record of a benchmark, or a
 * simulation: inline SVG, no script, nothing loaded from anywhere, readable in the dark and on a
 * phone, well-formed as XML too. Equal documents give equal bytes. Every text of a document is
 * escaped; a page shows what documents say and says that it did not verify them. */
#ifndef HT_REPORT_REPORT_H
#define HT_REPORT_REPORT_H
#include "core/buf.h"

/* dir: a bundle (evidence.md 7.2), read without following links: verdict, costmap, analysis/,
 * design, machine/before, subject/modelpack, build/source, samples. Appended to html. HT_EIO: one
 * is missing; HT_EFORMAT: it is not of the schema that its place wants. */
HT_MUST_USE int ht_report_bundle(const char *dir, ht_buf *html, ht_err *);

/* The same for a comparison with a foreign server (evid/compare.h). */
HT_MUST_USE int ht_report_comparison(const char *dir, ht_buf *html, ht_err *);

/* The same for a scheduler experiment (evid/sched.h). */
HT_MUST_USE int ht_report_schedule(const char *dir, ht_buf *html, ht_err *);

/* text: one JSON document; name: what the page calls it. Schema hetero/bench/2
 * (bench/record.py), the output of `hetero bench --json`, or hetero/sim/1, which gets a page
 * that cannot be taken for a measurement. HT_EFORMAT UNKNOWN_TYPE for anything else, and for a
 * simulation that claims to be evidence. */
HT_MUST_USE int ht_report_file(const char *text, size_t n, const char *name, ht_buf *html,
                               ht_err *);
#endif
