/* SPDX-License-Identifier: BSD-3-Clause
 *
 * pack.c: at build time, packs the images of a family, those with much the same code:
 *
 *     pack OUTPUT CODE... [-- OUTPUT CODE...]...    a CODE is <architecture>=<file>, machine code such as 90=x.cubin, or
 *                                                   ptx<architecture>=<file>
 *
 * The first image is packed by itself; each other one as what follows the first, so that it is unpacked after it, see
 * host/image.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/host/unpack.h"
#include "cuda/packed/model.h"
#include "cuda/packed/packing.h"

static struct bytes file_bytes(const char *name) {
    FILE *file = fopen(name, "rb");
    struct bytes b = {0};
    if (!file) fail("cannot be read", name);
    for (int c; (c = getc(file)) != EOF;) put(&b, (unsigned)c);
    fclose(file);
    return b;
}

static void put_number(struct bytes *b, size_t number) {
    for (int n = 0; n < 4; ++n) put(b, (unsigned)(number >> 8 * n) & 255);
}

/* ---- images */

struct code {
    int number; /* in the image's table */
    struct bytes plain, packed;
    unsigned char *all; /* the code after the base's */
    struct packing *after;
};
struct image {
    const char *name;
    int count;
    struct code codes[MOST_CODES];
};

static struct code code_of(char *argument) {
    char *name = strchr(argument, '=');
    const bool text = strncmp(argument, "ptx", 3) == 0;
    const long architecture = strtol(argument + 3 * text, NULL, 10);
    if (!name++ || architecture < 1 || architecture >= TEXT_CODE) fail("no code: <architecture>=<file> is taken", argument);
    struct code c = {.number = (int)architecture + (text ? TEXT_CODE : 0), .plain = file_bytes(name)};
    if (text) {
        const struct bytes less = stripped(&c.plain);
        free(c.plain.at);
        c.plain = renamed(&less, name);
        free(less.at);
    }
    if (c.plain.count == 0 || c.plain.count > MOST_UNPACKED / 2) fail("is empty or too long", name);
    return c;
}

static void pack_code(struct code *c, const struct code *base, const char *name) {
    const bool text = c->number >= TEXT_CODE;
    const size_t known = base ? base->plain.count : 0, count = c->plain.count;
    unsigned char *all = c->all = memory(known + count);
    if (base) memcpy(all, base->plain.at, known);
    memcpy(all + known, c->plain.at, count);
    c->after = packing_after(base ? base->after : NULL, all, (uint32_t)(known + count));
    c->packed = pack_stream(c->after, text);
    const struct packed codes[] = {{base ? base->packed.at : NULL, base ? base->packed.count : 0, known},
                                   {c->packed.at, c->packed.count, count}};
    unsigned char *again = strobe__unpack(base ? codes : codes + 1, base ? 2 : 1, text);
    struct bytes compared = {again, again && text ? strlen((char *)again) : count, 0};
    if (again && text) compared = renamed(&compared, name);
    if (!again || compared.count != count || memcmp(compared.at, c->plain.at, count) != 0) fail("does not unpack", name);
    if (compared.at != again) free(compared.at);
    free(again);
}

static void pack_image(struct image *image, const struct image *base) {
    struct bytes to = {0};
    put_number(&to, (size_t)image->count);
    for (int n = 0; n < image->count; ++n) {
        struct code *c = &image->codes[n];
        if (base && (n >= base->count || base->codes[n].number != c->number))
            fail("has not the codes of the first", image->name);
        pack_code(c, base ? &base->codes[n] : NULL, image->name);
        put_number(&to, (size_t)c->number), put_number(&to, c->packed.count), put_number(&to, c->plain.count);
    }
    for (int n = 0; n < image->count; ++n)
        for (size_t k = 0; k < image->codes[n].packed.count; ++k) put(&to, image->codes[n].packed.at[k]);
    FILE *file = fopen(image->name, "wb");
    if (!file || fwrite(to.at, 1, to.count, file) != to.count || fclose(file) != 0) fail("cannot be written", image->name);
    free(to.at);
}

int main(int count, char **arguments) {
    static struct image images[2]; /* the first, and another one */
    for (int n = 1, which = 0; n < count; ++n, which = 1) {
        struct image *image = &images[which];
        *image = (struct image){.name = arguments[n++]};
        for (; n < count && strcmp(arguments[n], "--") != 0; ++n) {
            if (image->count == MOST_CODES) fail("has too many codes", image->name);
            image->codes[image->count++] = code_of(arguments[n]);
        }
        if (!image->count) fail("arguments: OUTPUT CODE... [-- OUTPUT CODE...]...", "pack");
        pack_image(image, which ? &images[0] : NULL);
        for (int k = 0; which && k < image->count; ++k) {
            struct code *c = &image->codes[k];
            packing_end(c->after), free(c->all), free(c->plain.at), free(c->packed.at);
        }
    }
    return 0;
}
