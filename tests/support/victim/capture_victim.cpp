// A program that captures steps until it is killed, for the tests that kill it.
//
//   capture_victim HISTORY SETTINGS-FILE FIRST-STEP
//
// The elements follow from step and index, so that any state can be checked. "captured N" and "committed N" go to standard
// output; N of the second is the newest step that wait() promised.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "capture/session.hpp"
#include "support/victim/victim_values.hpp"

namespace {

[[noreturn]] void fail(const std::string& why) {
    std::fprintf(stderr, "capture_victim: %s\n", why.c_str());
    std::_Exit(3);
}

void say(const std::string& line) {
    const std::string whole = line + "\n";
    if (::write(STDOUT_FILENO, whole.data(), whole.size()) < 0) std::_Exit(4);
}

}  // namespace

int main(int argc, char** argv) {
    using namespace twinrun;
    if (argc != 4) fail("usage");
    SessionSettings settings;
    settings.existing = Existing::append;
    if (const auto loaded = settings.load(argv[2]); !loaded) fail(loaded.error().message);
    SelfComm comm;
    auto run = Session::open(posix_file_system(), comm, argv[1], settings);
    if (!run) fail(run.error().message);
    std::vector<std::vector<double>> state = testing::victim_state();
    for (std::size_t f = 0; f < state.size(); ++f) {
        CapturedField field;
        field.name = "field" + std::to_string(f);
        field.dtype = DType::f64;
        field.shape = {state[f].size()};
        field.data = state[f].data();
        if (const auto done = (*run)->protect(field); !done) fail(done.error().message);
    }
    for (std::int64_t step = std::strtoll(argv[3], nullptr, 10);; ++step) {
        testing::victim_become(state, step);
        const auto report = (*run)->capture(step);
        if (!report) fail(report.error().message);
        if (!report->lost.empty()) fail(report->lost.front().error.message);
        say("captured " + std::to_string(step));
        if (step % 3 != 0) continue;
        const auto lost = (*run)->wait();
        if (!lost) fail(lost.error().message);
        if (!lost->empty()) fail(lost->front().error.message);
        say("committed " + std::to_string(step));
    }
}
