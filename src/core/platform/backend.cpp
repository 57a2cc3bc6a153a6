#include "platform/backend.hpp"

#include <cstdlib>
#include <string>

namespace twinrun {

namespace {

struct Choice {
    Backend backend = Backend::portable;
    std::string ignored;
};

Choice choose() {
    Choice choice;
    for (const Backend b : {Backend::avx2, Backend::avx512}) {
        if (backend_available(b)) choice.backend = b;
    }
    const char* requested = std::getenv("TWINRUN_BACKEND");
    if (requested == nullptr || *requested == '\0') return choice;
    for (const Backend b : {Backend::portable, Backend::avx2, Backend::avx512}) {
        if (backend_name(b) == requested && backend_available(b)) {
            choice.backend = b;
            return choice;
        }
    }
    choice.ignored = requested;
    return choice;
}

const Choice& choice() {
    static const Choice once = choose();
    return once;
}

}  // namespace

std::string_view backend_name(Backend backend) {
    switch (backend) {
        case Backend::portable: return "portable";
        case Backend::avx2: return "avx2";
        case Backend::avx512: return "avx512";
    }
    return "unknown";
}

bool backend_available(Backend backend) {
#if defined(TWINRUN_X86)
    // __builtin_cpu_supports also checks that the operating system saves the wide registers.
    switch (backend) {
        case Backend::portable: return true;
        case Backend::avx2:
            // The instruction sets that cmake/TwinrunCompiler.cmake compiles these files with; f16c
            // came before avx2 in every processor.
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                   __builtin_cpu_supports("bmi2");
        case Backend::avx512:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512ifma") && __builtin_cpu_supports("avx512vnni") &&
                   __builtin_cpu_supports("bmi2");
    }
    return false;
#else
    return backend == Backend::portable;
#endif
}

Backend active_backend() { return choice().backend; }
std::string_view backend_override_ignored() { return choice().ignored; }

}  // namespace twinrun
