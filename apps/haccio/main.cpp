// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "haccio/agree.hpp"
#include "haccio/job.hpp"
#include "haccio/options.hpp"
#include "haccio/split.hpp"

namespace {

constexpr int kExitTrouble = 2;

int trouble(const char* what) {
    std::fprintf(stderr, "haccio: %s\n", what);
    return kExitTrouble;
}

// `twinrun aggregate study`, which finds this program again.
int study(int argc, char** argv) {
    char self[PATH_MAX];
    const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self - 1);
    if (length > 0) {
        self[length] = '\0';
        ::setenv("TWINRUN_HACCIO", self, 0);
    }
    std::vector<char*> words;
    std::string twinrun = "twinrun", aggregate = "aggregate";
    words.push_back(twinrun.data());
    words.push_back(aggregate.data());
    for (int i = 1; i < argc; ++i)
        words.push_back(argv[i]);
    words.push_back(nullptr);
    ::execvp(words[0], words.data());
    return trouble(
        "studies are made by `twinrun aggregate study`, and there is no twinrun on the PATH: pip install "
        "twinrun");
}

int run(const std::vector<std::string>& words) {
    try {
        if (!words.empty() && words[0] == "split")
            return haccio::run_split(haccio::parse_split_options({words.begin() + 1, words.end()}),
                                     MPI_COMM_WORLD);
        return haccio::run_job(haccio::parse_options(words), MPI_COMM_WORLD);
    } catch (const haccio::BadArgument& error) {  // on all ranks alike, as is AgreedFailure
        int rank = 0;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        return rank == 0 ? trouble(error.what()) : kExitTrouble;
    } catch (const haccio::AgreedFailure& error) {
        int rank = 0;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        return rank == 0 ? trouble(error.what()) : kExitTrouble;
    } catch (const std::exception& error) {
        // This rank alone, while others wait for it.
        trouble(error.what());
        MPI_Abort(MPI_COMM_WORLD, kExitTrouble);
    }
    return kExitTrouble;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string first = argc > 1 ? argv[1] : "";
    if (first == "study") return study(argc, argv);
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--help" || word == "-h") {
            std::fputs(first == "split" ? haccio::kSplitUsage : haccio::kUsage, stdout);
            return 0;
        }
    }
    if (first == "--print-mpiexec" && argc == 2) {
        std::puts(HACCIO_MPIEXEC);
        return 0;
    }
    MPI_Init(&argc, &argv);
    const int status = run({argv + 1, argv + argc});
    MPI_Finalize();
    return status;
}
