/* Compares two histories, as `twinrun compare` does.
 *
 * usage: compare [--atol X] [--rtol X] [--ulp N] [--nan-differs] [--integers] [--common] [--direct] [--cpu] [--json] A B
 *
 * Exit status: 0 the same, 1 different, 2 something could not be compared, or an error. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <twinrun/compare.h>

static int usage(void) {
    fputs(
        "usage: compare [--atol X] [--rtol X] [--ulp N] [--nan-differs] [--integers] [--common] [--direct] "
        "[--cpu] "
        "[--json] A B\n",
        stderr);
    return 2;
}

/* A line for each entry that differs. */
static void print_differences(const twr_comparison* found) {
    twr_comparison_report all = {.size = sizeof all};
    uint64_t i;
    if (twr_comparison_facts(found, &all) != TWR_OK) return;
    for (i = all.first_field; i < all.fields; ++i) {
        twr_field_report field = {.size = sizeof field};
        if (twr_comparison_field(found, i, &field) != TWR_OK || field.different == 0) continue;
        printf("step %lld, rank %d, %s: %s%llu of %llu elements differ", (long long)field.step, field.rank,
               field.field, field.different_is_exact ? "" : "at least ", (unsigned long long)field.different,
               (unsigned long long)field.elements);
        if (isnan(field.max_abs_diff))
            printf("; by how much is not known\n");
        else
            printf(", |a-b| is at most %g\n", field.max_abs_diff);
    }
    for (i = 0; i < all.problems; ++i)
        printf("not compared: %s\n", twr_comparison_problem(found, i));
    for (i = 0; i < all.notes; ++i)
        printf("note: %s\n", twr_comparison_note(found, i));
}

int main(int argc, char** argv) {
    twr_compare_options options = TWR_COMPARE_OPTIONS_INIT;
    twr_comparison* found;
    int json = 0;
    int at;
    int status;
    for (at = 1; at < argc && strncmp(argv[at], "--", 2) == 0; ++at) {
        const char* name = argv[at];
        if (strcmp(name, "--json") == 0) {
            json = 1;
        } else if (strcmp(name, "--nan-differs") == 0) {
            options.nan_differs = 1;
        } else if (strcmp(name, "--integers") == 0) {
            options.tolerate_integers = 1;
        } else if (strcmp(name, "--common") == 0) {
            options.common = 1;
        } else if (strcmp(name, "--direct") == 0) {
            options.method = TWR_METHOD_DIRECT;
        } else if (strcmp(name, "--cpu") == 0) {
            options.device = TWR_HOST;
        } else if (at + 1 == argc) {
            return usage();
        } else {
            char* end;
            const char* value = argv[++at];
            if (strcmp(name, "--atol") == 0) {
                options.atol = strtod(value, &end);
            } else if (strcmp(name, "--rtol") == 0) {
                options.rtol = strtod(value, &end);
            } else if (strcmp(name, "--ulp") == 0) {
                options.ulps = strtoll(value, &end, 10);
            } else {
                return usage();
            }
            if (end == value || *end != '\0') return usage();
        }
    }
    if (argc - at != 2) return usage();

    status = twr_compare(argv[at], argv[at + 1], &options, &found);
    if (found == NULL) {
        fprintf(stderr, "%s (%s)\n", twr_error_message(), twr_status_name(status));
        return 2;
    }
    if (json) {
        const char* text = twr_comparison_json(found);
        if (text == NULL) {
            fputs("not enough memory for the report\n", stderr);
            return 2;
        }
        puts(text);
    } else {
        print_differences(found);
        puts(twr_comparison_verdict(found));
    }
    twr_comparison_destroy(found);
    return status == TWR_OK ? 0 : status == TWR_DIFFERENT ? 1 : 2;
}
