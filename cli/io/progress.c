/* SPDX-License-Identifier: BSD-3-Clause
 *
 * progress.c: estimates, and the handler of Ctrl-C; see progress.h. */
#include "io/progress.h"

#include "commands.h"
#include "io/terminal.h"
#include "portable/posix.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

static volatile sig_atomic_t stopped;

static void note(int signal_number) {
    static const char sentence[] = "\nCtrl-C: finishing what is at work; once more ends it at once\n";
    stopped = 1;
    signal(signal_number, SIG_DFL);
    if (write(STDERR_FILENO, sentence, sizeof sentence - 1) < 0) return; /* nobody is there to be told */
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

progress progress_begin(int64_t count, double guessed) {
    stopped = 0;
    signal(SIGINT, note);
    return (progress){.count = count, .guessed = guessed, .begun = now()};
}

double progress_left(const progress *p, double elapsed) {
    const double trust = 0.5; /* seconds of a guess that count as much as what was seen */
    const double left = p->guessed - p->guessed_done;
    return left > 0 ? left * (elapsed + trust) / (p->guessed_done + trust) : 0;
}

/* "about 12 s left  ", or nothing where a second is not worth a word. */
static void say_left(double seconds, char *text, size_t capacity) {
    text[0] = 0;
    if (seconds >= 5400)
        snprintf(text, capacity, ", about %.1f h left", seconds / 3600);
    else if (seconds >= 90)
        snprintf(text, capacity, ", about %.0f min left", seconds / 60);
    else if (seconds >= 1)
        snprintf(text, capacity, ", about %.0f s left", seconds);
}

void progress_show(const progress *p, const char *format, ...) {
    char text[128], left[48];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    say_left(progress_left(p, now() - p->begun), left, sizeof left);
    const int64_t at = p->done < p->count ? p->done + 1 : p->count;
    terminal_progress("%lld of %lld%s  %s", (long long)at, (long long)p->count, left, text);
}

void progress_add(progress *p, double guessed, bool finished) {
    p->guessed_done += guessed;
    p->done += finished;
}

bool progress_stopped(void) { return stopped; }

int progress_code(const progress *p, const char *things, int code) {
    if (!stopped || p->done >= p->count) return code;
    terminal_progress_end();
    fprintf(stderr, "stopped: results are of %lld of %lld %s\n", (long long)p->done, (long long)p->count, things);
    return code == EXIT_OK ? EXIT_STOPPED : code;
}
