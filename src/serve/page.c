/* page.c - the page at `/`: one file without outside assets, taken into the program as it is. */
#include "serve/server.h"

/* The assembler takes the file in; paths are those of the build, which runs in the root. */
__asm__(".pushsection .rodata\nserve__page_begin: .incbin \"src/serve/page.html\"\n"
        "serve__page_end: .byte 0\n.popsection\n");
extern const char page_begin[] __asm__("serve__page_begin") __attribute__((visibility("hidden")));
extern const char page_end[] __asm__("serve__page_end") __attribute__((visibility("hidden")));

void serve__page(serve__server *s, serve__conn *c)
{
    ht_buf b;
    (void)s;
    ht_buf_init(&b, 0);
    ht_buf_add(&b, page_begin, (size_t)(page_end - page_begin));
    /* It asks this server and nobody else, and runs nothing but its own text. */
    serve__conn_add_header(c, "Content-Security-Policy",
                           "default-src 'none'; script-src 'unsafe-inline'; style-src "
                           "'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
                           "form-action 'none'; frame-ancestors 'none'");
    serve__conn_add_header(c, "X-Content-Type-Options", "nosniff");
    serve__conn_add_header(c, "Referrer-Policy", "no-referrer");
    serve__conn_add_header(c, "Cache-Control", "no-cache");
    serve__conn_answer(c, 200, "text/html; charset=utf-8", &b);
}
