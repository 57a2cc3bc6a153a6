// Part of a program, in front of the system's: a folder whose name ends in -lustre, and what is in it, lies on Lustre; one in -gpfs on GPFS
// with blocks of 4 MiB.
#include <dlfcn.h>
#include <sys/statfs.h>

#include <string_view>

extern "C" __attribute__((visibility("default"))) int statfs(const char* path,
                                                             struct statfs* about) noexcept {
    static const auto real =
        reinterpret_cast<int (*)(const char*, struct statfs*)>(::dlsym(RTLD_NEXT, "statfs"));
    const int answer = real(path, about);
    if (answer != 0) return answer;
    const std::string_view name(path);
    const auto in = [&](std::string_view folder) { return name.find(folder) != std::string_view::npos; };
    if (in("-lustre")) about->f_type = 0x0BD00BD0;
    if (in("-gpfs")) {
        about->f_type = 0x47504653;
        about->f_bsize = 4 << 20;
    }
    return 0;
}
