#include "aggregate/plan/striping.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace twinrun {
inline namespace aggregate_plan {

namespace {

constexpr int kMode = 0666;

// The functions of lustreapi.h that are called.
struct LustreLibrary {
    int (*file_open)(const char* name, int flags, int mode, unsigned long long stripe_size, int offset,
                     int count, int pattern) = nullptr;
    int (*message_level)() = nullptr;
    void (*set_message_level)(int level) = nullptr;
};

const LustreLibrary& lustre_library() {
    static const LustreLibrary found = [] {
        LustreLibrary made;
        // Tests name a library of their own, or one that does not exist.
        const char* const named = std::getenv("TWINRUN_LUSTRE_LIBRARY");
        void* handle = nullptr;
        if (named != nullptr && *named != '\0') {
            handle = ::dlopen(named, RTLD_NOW | RTLD_LOCAL);
        } else {
            for (const char* const name : {"liblustreapi.so.1", "liblustreapi.so"}) {
                if (handle == nullptr) handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
            }
        }
        if (handle == nullptr) return made;
        const auto find = [&](const char* name, auto& function) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
        };
        find("llapi_file_open", made.file_open);
        find("llapi_msg_get_level", made.message_level);
        find("llapi_msg_set_level", made.set_message_level);
        return made;
    }();
    return found;
}

// Lustre's library prints its errors, if it is not told to be silent.
class Silence {
   public:
    explicit Silence(const LustreLibrary& library) : library_(library) {
        if (library_.message_level == nullptr || library_.set_message_level == nullptr) return;
        before_ = library_.message_level();
        library_.set_message_level(0);
    }
    ~Silence() {
        if (before_) library_.set_message_level(*before_);
    }
    Silence(const Silence&) = delete;
    Silence& operator=(const Silence&) = delete;

   private:
    const LustreLibrary& library_;
    std::optional<int> before_;
};

std::optional<int> by_library(const LustreLibrary& library, const std::string& path,
                              const Striping& striping) {
    const Silence silent(library);
    constexpr int kAnyTarget = -1;
    const int file = library.file_open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                                       kMode, striping.unit, kAnyTarget, striping.factor, 0);
    if (file < 0) return std::nullopt;
    return file;
}

// The environment without LD_PRELOAD: what is in front of MPI in this program has no place in
// another one.
std::vector<char*> environment_of_child() {
    std::vector<char*> all;
    for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
        if (!std::string_view(*at).starts_with("LD_PRELOAD=")) all.push_back(*at);
    }
    all.push_back(nullptr);
    return all;
}

// Ends when the command ends. A program that collects all children itself may be faster; what
// became of the file says more than the status.
void run(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words)
        arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::vector<char*> environment = environment_of_child();
    posix_spawn_file_actions_t actions{};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    pid_t child = -1;
    const int spawned =
        posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environment.data());
    posix_spawn_file_actions_destroy(&actions);
    if (spawned != 0) return;
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
}

std::optional<int> by_command(const std::string& path, const Striping& striping) {
    struct stat about {};
    if (::lstat(path.c_str(), &about) == 0) return std::nullopt;
    std::vector<std::string> words{"lfs", "setstripe"};
    if (striping.factor != 0) words.insert(words.end(), {"-c", std::to_string(striping.factor)});
    if (striping.unit != 0) words.insert(words.end(), {"-S", std::to_string(striping.unit)});
    words.push_back(path.starts_with('-') ? "./" + path : path);
    run(std::move(words));
    const int file = ::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) return std::nullopt;
    if (::fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size == 0) return file;
    ::close(file);
    return std::nullopt;
}

}  // namespace

bool on_lustre(const std::string& path) {
    constexpr std::uint32_t kLustre = 0x0BD00BD0;
    struct statfs system {};
    return ::statfs(path.c_str(), &system) == 0 && static_cast<std::uint32_t>(system.f_type) == kLustre;
}

std::optional<int> create_striped(const std::string& path, const Striping& striping) {
    const LustreLibrary& lustre = lustre_library();
    return lustre.file_open != nullptr ? by_library(lustre, path, striping) : by_command(path, striping);
}

}  // namespace aggregate_plan
}  // namespace twinrun
