// Heat in a rod. Started again, it goes on from the last step that was captured.
//
// usage: capture_kokkos RUN STEPS
#include <cstdio>
#include <cstdlib>
#include <twinrun/kokkos.hpp>

using Rod = Kokkos::View<double*>;

static void diffuse(const Rod& u, const Rod& next) {
    Kokkos::parallel_for(
        "diffuse", Kokkos::RangePolicy<>(1, static_cast<long>(u.extent(0)) - 1),
        KOKKOS_LAMBDA(const long i) { next(i) = u(i) + 0.25 * (u(i - 1) - 2 * u(i) + u(i + 1)); });
    Kokkos::parallel_for(
        "take", Kokkos::RangePolicy<>(1, static_cast<long>(u.extent(0)) - 1),
        KOKKOS_LAMBDA(const long i) { u(i) = next(i); });
}

static void simulate(const char* path, std::int64_t steps) {
    Rod u("u", 10000);
    Rod next("next", 10000);
    Kokkos::parallel_for(
        "begin", Kokkos::RangePolicy<>(0, 10000),
        KOKKOS_LAMBDA(const long i) { u(i) = static_cast<double>(i % 100); });

    twr::Run run(path, twr::Settings{{"atol", "1e-9"}, {"existing", "append"}});
    twr::protect(run, u);

    std::int64_t step = 0;
    if (const auto latest = run.latest()) {
        step = *latest;
        run.restore(step);
    }
    while (step < steps) {
        diffuse(u, next);
        if (++step % 10 == 0) run.capture(step);
    }
    run.close();

    double sum = 0;
    Kokkos::parallel_reduce(
        "sum", Kokkos::RangePolicy<>(0, 10000),
        KOKKOS_LAMBDA(const long i, double& part) { part += u(i) * static_cast<double>(i); }, sum);
    std::printf("%.17g\n", sum);
}

int main(int argc, char** argv) {
    if (argc != 3) return EXIT_FAILURE;
    Kokkos::initialize();
    int status = EXIT_SUCCESS;
    try {
        simulate(argv[1], std::atoi(argv[2]));
    } catch (const twr::Error& error) {
        std::fprintf(stderr, "%s (%s)\n", error.what(), twr_status_name(error.code()));
        status = EXIT_FAILURE;
    }
    Kokkos::finalize();
    return status;
}
