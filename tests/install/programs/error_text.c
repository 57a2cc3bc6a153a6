/* One text of errors, whether a program is linked with the aggregation alone or (WITH_RUN) with all of twinrun's libraries. */
#include <stdio.h>
#include <string.h>
#include <twinrun/aggregate.h>
#ifdef WITH_RUN
#include <twinrun/mpi.h>
#include <veloc.h>
#endif

static int failures;

static void fails(int failed, const char* word) {
    /* The older name has the same text. */
    if (failed && strstr(twr_error_message(), word) != NULL &&
        strcmp(twr_aggregate_error_message(), twr_error_message()) == 0)
        return;
    fprintf(stderr, "no '%s' in '%s'\n", word, twr_error_message());
    ++failures;
}

int main(void) {
    twr_aggregate_settings* settings = NULL;
    fails(twr_aggregate_settings_create(NULL) == TWR_ERROR_INVALID_ARGUMENT, "settings is NULL");
    if (twr_aggregate_settings_create(&settings) != TWR_OK) return 1;
    fails(twr_aggregate_settings_set(settings, "files", "many") == TWR_ERROR_INVALID_ARGUMENT, "'many'");
    twr_aggregate_settings_destroy(settings);
#ifdef WITH_RUN
    fails(twr_capture(NULL, 0) == TWR_ERROR_INVALID_ARGUMENT, "twr_capture");
    fails(twr_open_mpi(NULL, "run", NULL, MPI_COMM_WORLD) == TWR_ERROR_INVALID_ARGUMENT, "twr_open_mpi");
    fails(VELOC_Checkpoint_wait() == VELOC_FAILURE, "VELOC_Checkpoint_wait");
    fails(strcmp(twr_veloc_error_message(), twr_error_message()) == 0, "VELOC_Checkpoint_wait");
#endif
    if (twr_version_number() != TWINRUN_VERSION_NUMBER || strcmp(twr_version(), TWINRUN_VERSION) != 0) {
        fprintf(stderr, "headers of %s, library of %s\n", TWINRUN_VERSION, twr_version());
        ++failures;
    }
    return failures != 0;
}
