/* SPDX-License-Identifier: BSD-3-Clause
 *
 * parse.c: the text of a score function becomes nodes, by recursive descent with C's precedence. What is wrong is said with
 * the text's name, the column, from 1 on, and what is accepted there. Text is copied nowhere but into such sentences. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/score/score.h"

enum token_kind { END, NUMBER, NAME, SYMBOL };

struct token {
    enum token_kind kind;
    int at, length; /* in the text */
    bool is_integer;
    double value;
};

struct parser {
    struct strobe_score *f;
    const char *text, *title; /* "score" or "visible" */
    bool visible;
    int depth;
    struct token token; /* the next one */
    struct score_error *error;
};

static uint16_t parse_choice(struct parser *p);

/* ------------------------------------------------------------------------------------------------------------- tokens -- */

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Refuses the next token: what it is, and what is accepted in its place. */
static uint16_t refuse(struct parser *p, const char *accepted) {
    const struct token *t = &p->token;
    if (t->kind == END)
        strobe__score_fail(p->error, "%s ends at column %d; %s is accepted there", p->title, t->at + 1, accepted);
    else
        strobe__score_fail(p->error, "%s has \"%.*s\" at column %d; %s is accepted there", p->title,
                           t->length < 40 ? t->length : 40, p->text + t->at, t->at + 1, accepted);
    return NO_NODE;
}

/* A decimal number, in any locale. The f of 0.5f is taken and says nothing more: floats have one type. */
static bool read_number(struct parser *p, struct token *t) {
    const char *c = p->text + t->at;
    double digits = 0;
    int exponent = 0, written = 0;
    t->is_integer = true;
    for (; is_digit(*c); ++c) digits = digits * 10 + (*c - '0');
    if (*c == '.') {
        t->is_integer = false;
        for (++c; is_digit(*c); ++c, --exponent) digits = digits * 10 + (*c - '0');
    }
    if (*c == 'e' || *c == 'E') {
        const bool minus = c[1] == '-';
        const char *const first = c + 1 + (c[1] == '-' || c[1] == '+');
        if (!is_digit(*first)) {
            t->length = (int)(first - (p->text + t->at));
            refuse(p, "a digit of the exponent");
            return false;
        }
        t->is_integer = false;
        for (c = first; is_digit(*c); ++c) written = written < 10000 ? written * 10 + (*c - '0') : written;
        exponent += minus ? -written : written;
    }
    const bool is_single = !t->is_integer && (*c == 'f' || *c == 'F');
    c += is_single;
    t->length = (int)(c - (p->text + t->at));
    if (t->is_integer && t->length > 1 && p->text[t->at] == '0') { /* to C an octal number */
        refuse(p, "a decimal number, whose first digit is not 0,");
        return false;
    }
    t->value = exponent < 0 ? digits / pow(10, -exponent) : digits * pow(10, exponent);
    if (is_letter(*c) || *c == '.' || (is_single && is_digit(*c))) {
        t->length += 1;
        refuse(p, "a number, an operator behind it,");
        return false;
    }
    if (t->is_integer ? t->value <= 2147483647.0 : t->value <= 3.4e38) return true;
    refuse(p, t->is_integer ? "an integer up to 2147483647, or a float such as 3e9," : "a number up to 3.4e38, or inf,");
    return false;
}

/* Reads the next token. False: refused. */
static bool advance(struct parser *p) {
    static const char *const pairs[] = {"<=", ">=", "==", "!=", "&&", "||"};
    struct token *t = &p->token;
    int at = t->at + t->length;
    while (p->text[at] == ' ' || p->text[at] == '\t' || p->text[at] == '\n' || p->text[at] == '\r') ++at;
    *t = (struct token){.at = at, .length = 1, .kind = SYMBOL};
    const char *c = p->text + at;
    if (*c == 0) {
        t->kind = END, t->length = 0;
        return true;
    }
    if (is_digit(*c) || (*c == '.' && is_digit(c[1]))) {
        t->kind = NUMBER;
        return read_number(p, t);
    }
    if (is_letter(*c)) {
        t->kind = NAME;
        while (is_letter(c[t->length]) || is_digit(c[t->length])) ++t->length;
        return true;
    }
    for (size_t n = 0; n < sizeof pairs / sizeof pairs[0]; ++n)
        if (strncmp(c, pairs[n], 2) == 0) t->length = 2;
    if (t->length == 2 || strchr("+-*/%<>!?:()[],", *c)) return true;
    if (*c < ' ' || *c > '~')
        strobe__score_fail(p->error, "%s has the byte 0x%02x at column %d; letters, digits and operators are accepted there",
                           p->title, (unsigned char)*c, at + 1);
    else
        refuse(p, *c == '&' || *c == '|' ? "&& or ||" : *c == '=' ? "==" : "an operator, a name or a number");
    return false;
}

static bool is_symbol(const struct parser *p, const char *symbol) {
    const struct token *t = &p->token;
    return t->kind == SYMBOL && t->length == (int)strlen(symbol) && strncmp(p->text + t->at, symbol, (size_t)t->length) == 0;
}

static bool is_name(const struct parser *p, const struct token *t, const char *name) {
    return t->length == (int)strlen(name) && strncmp(p->text + t->at, name, (size_t)t->length) == 0;
}

/* Takes a symbol that has to come. */
static bool expect(struct parser *p, const char *symbol, const char *accepted) {
    if (is_symbol(p, symbol)) return advance(p);
    refuse(p, accepted);
    return false;
}

/* -------------------------------------------------------------------------------------------------------------- types -- */

static bool is_integer(const struct parser *p, uint16_t n) { return p->f->node[n].is_integer; }

/* A node, or the sentence that there is no room for it. */
static uint16_t node(struct parser *p, enum score_operation operation, uint16_t a, uint16_t b, uint16_t c) {
    const uint16_t n = strobe__score_node(p->f, operation, a, b, c);
    if (n == NO_NODE && !p->error->sentence[0])
        strobe__score_fail(p->error, "%s has more operations than are accepted, %d with those of its derivative", p->title,
                           SCORE_MOST_NODES);
    return n;
}

static uint16_t checked(struct parser *p, uint16_t n) { return n == NO_NODE ? node(p, OP_I_NEG, n, 0, 0) : n; }

static uint16_t to_float(struct parser *p, uint16_t n) {
    return n == NO_NODE || !is_integer(p, n) ? n : node(p, OP_I_TO_F, n, 0, 0);
}

/* 0 or 1. */
static uint16_t to_bool(struct parser *p, uint16_t n) {
    if (n == NO_NODE) return n;
    const struct score_node *x = &p->f->node[n];
    const int operation = x->operation;
    const bool is_bool = operation == OP_I_LESS || operation == OP_I_LESS_EQUAL || operation == OP_I_EQUAL ||
                         operation == OP_I_AND || operation == OP_I_OR || operation == OP_I_NOT || operation == OP_F_LESS ||
                         operation == OP_F_LESS_EQUAL || operation == OP_F_EQUAL ||
                         (operation == OP_CONSTANT && x->is_integer && (x->value == 0 || x->value == 1));
    if (is_bool) return n;
    const bool integer = x->is_integer;
    const uint16_t zero = checked(p, strobe__score_constant(p->f, integer, 0));
    return node(p, OP_I_NOT, node(p, integer ? OP_I_EQUAL : OP_F_EQUAL, n, zero, 0), 0, 0);
}

/* An operation on integers if both operands are, else on floats. */
static uint16_t arithmetic(struct parser *p, enum score_operation integers, enum score_operation floats, uint16_t a,
                           uint16_t b) {
    if (a == NO_NODE || b == NO_NODE) return NO_NODE;
    if (is_integer(p, a) && is_integer(p, b)) return node(p, integers, a, b, 0);
    return node(p, floats, to_float(p, a), to_float(p, b), 0);
}

static uint16_t negation(struct parser *p, uint16_t a) { return node(p, OP_I_NOT, a, 0, 0); }

/* --------------------------------------------------------------------------------------------------------- operands -- */

/* The operands of a function, `count` of them, in parentheses. */
static bool parse_operands(struct parser *p, uint16_t of[2], int count) {
    if (!advance(p) || !expect(p, "(", "(")) return false;
    for (int n = 0; n < count; ++n) {
        of[n] = parse_choice(p);
        if (of[n] == NO_NODE) return false;
        const bool last = n + 1 == count;
        if (!expect(p, last ? ")" : ",", last ? "an operator or )" : "an operator or , and a second operand")) return false;
    }
    return true;
}

static const struct function {
    const char *name;
    int operands, integers, floats; /* integers: the operation on them; -1: they become floats */
} functions[] = {
    {"min", 2, OP_I_MIN, OP_F_MIN}, {"max", 2, OP_I_MAX, OP_F_MAX}, {"abs", 1, OP_I_ABS, OP_F_ABS},
    {"exp", 1, -1, OP_F_EXP},       {"exp2", 1, -1, OP_F_EXP2},     {"log", 1, -1, OP_F_LOG},
    {"tanh", 1, -1, OP_F_TANH},     {"sqrt", 1, -1, OP_F_SQRT},     {"floor", 1, -1, OP_F_FLOOR},
    {"pow", 2, -1, OP_F_POW},
};

static uint16_t parse_function(struct parser *p, const struct function *function) {
    uint16_t of[2] = {0, 0};
    if (!parse_operands(p, of, function->operands)) return NO_NODE;
    const bool integers = is_integer(p, of[0]) && (function->operands == 1 || is_integer(p, of[1]));
    if (integers && function->integers >= 0) return node(p, (enum score_operation)function->integers, of[0], of[1], 0);
    const uint16_t a = to_float(p, of[0]), b = function->operands > 1 ? to_float(p, of[1]) : 0;
    return node(p, (enum score_operation)function->floats, a, b, 0);
}

/* int(x) or float(x). */
static uint16_t parse_conversion(struct parser *p, bool to_integer) {
    uint16_t of[2];
    if (!parse_operands(p, of, 1)) return NO_NODE;
    if (!to_integer) return to_float(p, of[0]);
    return is_integer(p, of[0]) ? of[0] : node(p, OP_F_TO_I, of[0], 0, 0);
}

/* One index: 0 to the extent less one. */
static uint16_t clamp(struct parser *p, uint16_t index, uint8_t array, uint8_t axis) {
    if (p->f->node[index].affine) return index;
    const uint16_t last = checked(p, strobe__score_named(p->f, OP_LAST, array, axis));
    const uint16_t zero = checked(p, strobe__score_constant(p->f, true, 0));
    return node(p, OP_I_MAX, node(p, OP_I_MIN, index, last, 0), zero, 0);
}

/* The element at an offset, as a load of its own; the same element is loaded once. */
static uint16_t enter_load(struct parser *p, struct score_load *load, uint16_t offset) {
    struct strobe_score *f = p->f;
    const uint16_t before = f->node_count;
    load->node = checked(p, strobe__score_load(f, load->array, offset));
    if (load->node == NO_NODE || load->node < before) return load->node;
    if (f->load_count == SCORE_MOST_LOADS) {
        strobe__score_fail(p->error, "%s reads more than %d elements; up to %d are accepted", p->title, SCORE_MOST_LOADS,
                           SCORE_MOST_LOADS);
        return NO_NODE;
    }
    f->load[f->load_count++] = *load;
    return load->node;
}

static uint16_t parse_element(struct parser *p, uint8_t array) {
    struct score_load load = {.array = array, .in_visible = p->visible, .column = (uint16_t)(p->token.at + 1)};
    uint16_t offset = NO_NODE;
    char accepted[120];
    snprintf(accepted, sizeof accepted, "[ (%s has rank %d)", p->f->array_name[array].text, p->f->array_rank[array]);
    if (!advance(p)) return NO_NODE;
    for (uint8_t axis = 0; axis < p->f->array_rank[array]; ++axis) {
        if (!expect(p, "[", accepted)) return NO_NODE;
        const struct token first = p->token;
        uint16_t index = parse_choice(p);
        if (index == NO_NODE) return NO_NODE;
        if (!is_integer(p, index)) {
            p->token = first;
            return refuse(p, "an integer (int(x) makes one) as an index");
        }
        if (!expect(p, "]", "an operator or ]")) return NO_NODE;
        index = clamp(p, index, array, axis);
        load.index[axis] = index;
        const uint16_t stride = checked(p, strobe__score_named(p->f, OP_STRIDE, array, axis));
        const uint16_t product = node(p, OP_I_MUL, index, stride, 0);
        offset = axis == 0 ? product : node(p, OP_I_ADD, offset, product, 0);
        if (offset == NO_NODE) return NO_NODE;
    }
    return enter_load(p, &load, offset);
}

/* The names that every function has. */
static const struct {
    const char *name;
    enum score_operation operation;
} names[] = {{"score", OP_SCORE}, {"b", OP_BATCH}, {"h", OP_HEAD},      {"hkv", OP_HEAD_KV},
             {"i", OP_ROW},       {"j", OP_KEY},   {"seq_q", OP_SEQ_Q}, {"seq_k", OP_SEQ_K}};

static uint16_t parse_name(struct parser *p) {
    const struct token t = p->token;
    struct strobe_score *f = p->f;
    for (size_t n = 0; n < sizeof names / sizeof names[0]; ++n)
        if (is_name(p, &t, names[n].name)) {
            if (p->visible && names[n].operation == OP_SCORE) return refuse(p, "a name other than score");
            return advance(p) ? checked(p, strobe__score_named(f, names[n].operation, 0, 0)) : NO_NODE;
        }
    for (size_t n = 0; n < sizeof functions / sizeof functions[0]; ++n)
        if (is_name(p, &t, functions[n].name)) return parse_function(p, &functions[n]);
    if (is_name(p, &t, "int") || is_name(p, &t, "float")) return parse_conversion(p, is_name(p, &t, "int"));
    if (is_name(p, &t, "inf")) return advance(p) ? checked(p, strobe__score_constant(f, false, INFINITY)) : NO_NODE;
    for (uint8_t n = 0; n < f->scalar_count; ++n)
        if (is_name(p, &t, f->scalar_name[n].text))
            return advance(p) ? checked(p, strobe__score_named(f, OP_SCALAR, n, 0)) : NO_NODE;
    for (uint8_t n = 0; n < f->array_count; ++n)
        if (is_name(p, &t, f->array_name[n].text)) return parse_element(p, n);
    return refuse(p,
                  "one of score, b, h, hkv, i, j, seq_q, seq_k, inf, a declared scalar or array, or a function (min, max, "
                  "abs, exp, exp2, log, tanh, sqrt, floor, pow, int, float)");
}

static uint16_t parse_primary(struct parser *p) {
    if (p->token.kind == NAME) return parse_name(p);
    if (p->token.kind == NUMBER) {
        const uint16_t n = checked(p, strobe__score_constant(p->f, p->token.is_integer, p->token.value));
        return n != NO_NODE && advance(p) ? n : NO_NODE;
    }
    if (!is_symbol(p, "(")) return refuse(p, "a number, a name, (, -, + or !");
    if (!advance(p)) return NO_NODE;
    const uint16_t n = parse_choice(p);
    return n != NO_NODE && expect(p, ")", "an operator or )") ? n : NO_NODE;
}

/* --------------------------------------------------------------------------------------------------------- operators -- */

/* Enters one level; false when the text goes too deep. */
static bool enter_level(struct parser *p) {
    if (++p->depth <= SCORE_MOST_DEPTH) return true;
    strobe__score_fail(p->error, "%s is nested more than %d deep at column %d; up to %d is accepted", p->title,
                       SCORE_MOST_DEPTH, p->token.at + 1, SCORE_MOST_DEPTH);
    return false;
}

static uint16_t parse_unary(struct parser *p) {
    const bool minus = is_symbol(p, "-"), not = is_symbol(p, "!");
    if (!minus && !not &&!is_symbol(p, "+")) return parse_primary(p);
    if (!enter_level(p) || !advance(p)) return NO_NODE;
    const uint16_t a = parse_unary(p);
    --p->depth;
    if (a == NO_NODE || !(minus || not )) return a;
    if (not ) return negation(p, to_bool(p, a));
    return node(p, is_integer(p, a) ? OP_I_NEG : OP_F_NEG, a, 0, 0);
}

static const struct binary {
    const char *symbol;
    int level;
} binaries[] = {{"||", 1}, {"&&", 2}, {"==", 3}, {"!=", 3}, {"<", 4}, {"<=", 4}, {">", 4},
                {">=", 4}, {"+", 5},  {"-", 5},  {"*", 6},  {"/", 6}, {"%", 6}};

static const struct binary *next_binary(const struct parser *p) {
    for (size_t n = 0; n < sizeof binaries / sizeof binaries[0]; ++n)
        if (is_symbol(p, binaries[n].symbol)) return &binaries[n];
    return NULL;
}

static uint16_t combine(struct parser *p, const struct token *at, uint16_t a, uint16_t b) {
    const char *symbol = p->text + at->at;
    const bool equal = at->length == 2;
    switch (*symbol) {
    case '|': return node(p, OP_I_OR, to_bool(p, a), to_bool(p, b), 0);
    case '&': return node(p, OP_I_AND, to_bool(p, a), to_bool(p, b), 0);
    case '=': return arithmetic(p, OP_I_EQUAL, OP_F_EQUAL, a, b);
    case '!': return negation(p, arithmetic(p, OP_I_EQUAL, OP_F_EQUAL, a, b));
    case '<': return arithmetic(p, equal ? OP_I_LESS_EQUAL : OP_I_LESS, equal ? OP_F_LESS_EQUAL : OP_F_LESS, a, b);
    case '>': return arithmetic(p, equal ? OP_I_LESS_EQUAL : OP_I_LESS, equal ? OP_F_LESS_EQUAL : OP_F_LESS, b, a);
    case '+': return arithmetic(p, OP_I_ADD, OP_F_ADD, a, b);
    case '-': return arithmetic(p, OP_I_SUB, OP_F_SUB, a, b);
    case '*': return arithmetic(p, OP_I_MUL, OP_F_MUL, a, b);
    case '/': return arithmetic(p, OP_I_DIV, OP_F_DIV, a, b);
    default: break;
    }
    if (is_integer(p, a) && is_integer(p, b)) return node(p, OP_I_MOD, a, b, 0);
    p->token = *at;
    return refuse(p, "% between integers (floor() and - make a remainder of floats)");
}

/* Operators of `level` and above, which bind more tightly, from left to right. */
static uint16_t parse_binary(struct parser *p, int level) {
    uint16_t a = parse_unary(p);
    const struct binary *next;
    while (a != NO_NODE && (next = next_binary(p)) != NULL && next->level >= level) {
        const struct token at = p->token;
        if (!enter_level(p) || !advance(p)) return NO_NODE;
        const uint16_t b = parse_binary(p, next->level + 1);
        --p->depth;
        a = b == NO_NODE ? NO_NODE : combine(p, &at, a, b);
    }
    return a;
}

static uint16_t parse_choice(struct parser *p) {
    if (!enter_level(p)) return NO_NODE;
    uint16_t condition = parse_binary(p, 1);
    if (condition != NO_NODE && is_symbol(p, "?")) {
        condition = to_bool(p, condition);
        if (condition == NO_NODE || !advance(p)) return NO_NODE;
        const uint16_t yes = parse_choice(p);
        if (yes == NO_NODE || !expect(p, ":", "an operator or :")) return NO_NODE;
        const uint16_t no = parse_choice(p);
        if (no == NO_NODE) return NO_NODE;
        const bool integers = is_integer(p, yes) && is_integer(p, no);
        condition = integers ? node(p, OP_I_SELECT, condition, yes, no)
                             : node(p, OP_F_SELECT, condition, to_float(p, yes), to_float(p, no));
    }
    --p->depth;
    return condition;
}

uint16_t strobe__score_parse(struct strobe_score *f, const char *text, bool visible, struct score_error *error) {
    struct parser p = {.f = f, .text = text, .title = visible ? "visible" : "score", .visible = visible, .error = error};
    if (memchr(text, 0, SCORE_MOST_TEXT + 1) == NULL) {
        strobe__score_fail(error, "%s has more than %d characters; up to %d are accepted", p.title, SCORE_MOST_TEXT,
                           SCORE_MOST_TEXT);
        return NO_NODE;
    }
    if (!advance(&p)) return NO_NODE;
    const uint16_t n = parse_choice(&p);
    if (n == NO_NODE) return n;
    if (p.token.kind != END) return refuse(&p, "an operator or the end");
    return visible ? to_bool(&p, n) : to_float(&p, n);
}
