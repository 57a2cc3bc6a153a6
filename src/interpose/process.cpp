// Ends of a process other than a return from main, and exec.
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>

#include "interpose/raw.hpp"
#include "interpose/wrap.hpp"

using namespace twinrun::interpose;

namespace twinrun::interpose {

namespace {

// Handles a fatal signal without a handler of the program: writes the profile, then lets the signal
// end the process.
void on_end(int number) {
    finish_profile();
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    sigaction(number, &plain, nullptr);
    syscall(SYS_tgkill, raw_pid(), syscall(SYS_gettid), number);
}

}  // namespace

void watch_ends() {
    at_quick_exit(finish_profile);
    // Signals from other processes, or from the system to programs without a fault. Not SIGINT:
    // programs check whether it is ignored before they handle it.
    const int numbers[] = {SIGTERM, SIGPIPE, SIGHUP, SIGXCPU};
    for (const int number : numbers) {
        struct sigaction seen {};
        if (sigaction(number, nullptr, &seen) != 0 || (seen.sa_flags & SA_SIGINFO) != 0 ||
            seen.sa_handler != SIG_DFL) {
            continue;
        }
        struct sigaction own {};
        own.sa_handler = on_end;
        own.sa_flags = SA_ONSTACK;
        sigfillset(&own.sa_mask);
        sigaction(number, &own, nullptr);
    }
}

}  // namespace twinrun::interpose

namespace {

[[noreturn]] void leave(int status) {
    for (;;)
        syscall(SYS_exit_group, status);
}

// Number of words before the terminating null pointer.
std::size_t words_in(const char* first, va_list given) {
    std::size_t count = 0;
    va_list list;
    va_copy(list, given);
    for (const char* word = first; word != nullptr; word = va_arg(list, const char*))
        ++count;
    va_end(list);
    return count;
}

}  // namespace

TWR_WRAP void _exit(int status) {
    finish_profile();
    leave(status);
}
TWR_WRAP void _Exit(int status) noexcept {
    finish_profile();
    leave(status);
}
TWR_WRAP void abort() noexcept {
    static constinit Next<void()> next{"abort"};
    finish_profile();
    if (auto* real = next.get()) real();
    leave(127);
}

#define TWR_EXEC(name, parameters, arguments)              \
    TWR_WRAP int name parameters noexcept {                \
        static constinit Next<int parameters> next{#name}; \
        auto* real = next.get();                           \
        if (real == nullptr) return missing(-1);           \
        finish_profile();                                  \
        return real arguments;                             \
    }
TWR_EXEC(execve, (const char* path, char* const* words, char* const* variables), (path, words, variables))
TWR_EXEC(execv, (const char* path, char* const* words), (path, words))
TWR_EXEC(execvp, (const char* path, char* const* words), (path, words))
TWR_EXEC(execvpe, (const char* path, char* const* words, char* const* variables), (path, words, variables))
TWR_EXEC(fexecve, (int file, char* const* words, char* const* variables), (file, words, variables))
TWR_EXEC(execveat, (int folder, const char* path, char* const* words, char* const* variables, int flags),
         (folder, path, words, variables, flags))

// On the stack, because nothing may be allocated between vfork and exec.
#define TWR_EXECL(name, behind, variables, ...)                                            \
    TWR_WRAP int name(const char* path, const char* first, ...) noexcept {                 \
        va_list list;                                                                      \
        va_start(list, first);                                                             \
        const std::size_t count = words_in(first, list);                                   \
        auto** words = static_cast<char**>(__builtin_alloca((count + 1) * sizeof(char*))); \
        words[0] = const_cast<char*>(first);                                               \
        for (std::size_t i = 1; i <= count; ++i)                                           \
            words[i] = va_arg(list, char*);                                                \
        variables;                                                                         \
        va_end(list);                                                                      \
        return behind(path, words __VA_OPT__(, ) __VA_ARGS__);                             \
    }
TWR_EXECL(execl, execv, )
TWR_EXECL(execlp, execvp, )
TWR_EXECL(execle, execve, auto* variables = va_arg(list, char* const*), variables)
