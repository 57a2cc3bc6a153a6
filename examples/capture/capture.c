/* Heat in a rod. Started again, it goes on from the last step that was captured.
 *
 * usage: capture RUN STEPS */
#include <stdio.h>
#include <stdlib.h>
#include <twinrun/twinrun.h>

#define ITEMS 10000

#define CHECK(call)                                                                     \
    do {                                                                                \
        const int status = (call);                                                      \
        if (status != TWR_OK) {                                                         \
            fprintf(stderr, "%s (%s)\n", twr_error_message(), twr_status_name(status)); \
            return EXIT_FAILURE;                                                        \
        }                                                                               \
    } while (0)

static double u[ITEMS], next[ITEMS];

static void diffuse(void) {
    size_t i;
    for (i = 1; i + 1 < ITEMS; ++i)
        next[i] = u[i] + 0.25 * (u[i - 1] - 2 * u[i] + u[i + 1]);
    for (i = 1; i + 1 < ITEMS; ++i)
        u[i] = next[i];
}

int main(int argc, char** argv) {
    const uint64_t shape[] = {ITEMS};
    const int64_t steps = argc == 3 ? atoi(argv[2]) : 0;
    int64_t step = 0;
    double sum = 0;
    size_t i;
    twr_settings* settings;
    twr_run* run;
    int found;

    for (i = 0; i < ITEMS; ++i)
        u[i] = (double)(i % 100);

    CHECK(twr_settings_create(&settings));
    CHECK(twr_settings_set(settings, "atol", "1e-9"));
    CHECK(twr_settings_set(settings, "existing", "append"));
    CHECK(twr_open(&run, argc == 3 ? argv[1] : "run", settings));
    twr_settings_destroy(settings);
    CHECK(twr_protect(run, "u", u, TWR_F64, 1, shape));

    found = twr_latest(run, INT64_MAX, &step);
    if (found == TWR_OK) {
        CHECK(twr_restore(run, step));
    } else if (found != TWR_ERROR_NOT_FOUND) {
        CHECK(found);
    }
    while (step < steps) {
        diffuse();
        if (++step % 10 == 0) CHECK(twr_capture(run, step));
    }
    CHECK(twr_close(run));

    for (i = 0; i < ITEMS; ++i)
        sum += u[i] * (double)i;
    printf("%.17g\n", sum);
    return EXIT_SUCCESS;
}
