// Heat in a rod. Started again, it goes on from the last step that was captured.
//
// usage: capture RUN STEPS
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <twinrun/twinrun.hpp>
#include <vector>

static void diffuse(std::vector<double>& u) {
    std::vector<double> next = u;
    for (std::size_t i = 1; i + 1 < u.size(); ++i)
        next[i] = u[i] + 0.25 * (u[i - 1] - 2 * u[i] + u[i + 1]);
    std::copy(next.begin(), next.end(), u.begin());  // where it lies
}

int main(int argc, char** argv) try {
    if (argc != 3) return EXIT_FAILURE;
    const std::int64_t steps = std::atoi(argv[2]);
    std::vector<double> u(10000);
    for (std::size_t i = 0; i < u.size(); ++i)
        u[i] = static_cast<double>(i % 100);

    twr::Run run(argv[1], twr::Settings{{"atol", "1e-9"}, {"existing", "append"}});
    run.protect("u", u);

    std::int64_t step = 0;
    if (const auto latest = run.latest()) {
        step = *latest;
        run.restore(step);
    }
    while (step < steps) {
        diffuse(u);
        if (++step % 10 == 0) run.capture(step);
    }
    run.close();

    double sum = 0;
    for (std::size_t i = 0; i < u.size(); ++i)
        sum += u[i] * static_cast<double>(i);
    std::printf("%.17g\n", sum);
} catch (const twr::Error& error) {
    std::fprintf(stderr, "%s (%s)\n", error.what(), twr_status_name(error.code()));
    return EXIT_FAILURE;
}
