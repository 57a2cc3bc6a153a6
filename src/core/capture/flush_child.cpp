#include "capture/flush_child.hpp"

#include <dlfcn.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "history/flush.hpp"

extern char** environ;

namespace twinrun {

namespace fs = std::filesystem;

namespace {

constexpr const char* kProgram = "twinrun_flush";

std::string find_program(const std::string& given) {
    if (!given.empty()) return given;
    Dl_info here;
    std::error_code ignored;
    if (::dladdr(reinterpret_cast<void*>(&find_program), &here) != 0 && here.dli_fname != nullptr) {
        const fs::path folder = fs::path(here.dli_fname).parent_path();
        for (const fs::path& place : {folder / kProgram, folder.parent_path() / "bin" / kProgram,
                                      folder.parent_path().parent_path() / "bin" / kProgram}) {
            if (fs::is_regular_file(place, ignored)) return place.string();
        }
    }
    return kProgram;
}

Error not_started(const std::string& program, const char* what, int why) {
    return Error{ErrorCode::io, std::string(what) + " " + program + ": " + std::strerror(why) +
                                    ": set flush_program to where twinrun_flush is, or flusher to thread"};
}

Error ended() {
    return Error{ErrorCode::io,
                 "the process twinrun_flush has ended: copy the steps to the history with 'twinrun flush'"};
}

// Receives a line, without the line feed. nullopt: the other process has closed the socket, or
// sends no line.
std::optional<std::string> read_line(int socket, std::string& received) {
    for (;;) {
        if (const std::size_t end = received.find('\n'); end != std::string::npos) {
            std::string line = received.substr(0, end);
            received.erase(0, end + 1);
            return line;
        }
        std::array<char, 4096> part;
        const ssize_t got = ::recv(socket, part.data(), part.size(), 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0 || received.size() > 1 << 16) return std::nullopt;
        received.append(part.data(), static_cast<std::size_t>(got));
    }
}

bool send_all(int socket, std::string_view text) {
    while (!text.empty()) {
        const ssize_t sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
}

Result<> run_command(std::string_view command, const std::string& local, HistoryWriter& to) {
    const std::size_t space = command.find(' ');
    std::int64_t step = 0;
    const char* end = command.data() + command.size();
    if (space == std::string_view::npos ||
        std::from_chars(command.data() + space + 1, end, step).ptr != end) {
        return Error{ErrorCode::invalid_argument, "not a command"};
    }
    const std::string_view verb = command.substr(0, space);
    if (verb == "flush") {
        TWR_TRY(const LocalHistory from, LocalHistory::read(local));
        const auto entry = from.journal.steps.find(step);
        if (entry == from.journal.steps.end()) return Error{ErrorCode::not_found, "no such step"};
        return flush_step(local, step, entry->second, to);
    }
    if (verb == "reserve") return to.reserve_differences(static_cast<std::uint32_t>(step));
    if (!to.journal().steps.contains(step)) return success();
    if (verb == "drop") return to.drop({&step, 1});
    if (verb == "drop_data") return to.drop_data({&step, 1});
    return Error{ErrorCode::invalid_argument, "not a command"};
}

}  // namespace

Result<> FlushChild::check(const std::string& program) {
    const std::string path = find_program(program);
    std::vector<std::string> places{path};
    if (path.find('/') == std::string::npos) {
        const char* const search = std::getenv("PATH");
        if (search == nullptr) return success();  // posix_spawnp searches the system's default path
        places.clear();
        std::string_view rest = search;
        for (std::size_t end = 0; end != std::string_view::npos; rest.remove_prefix(end + 1)) {
            end = rest.find(':');
            places.push_back((fs::path(rest.substr(0, end)) / path).string());
            if (end == std::string_view::npos) break;
        }
    }
    int why = ENOENT;
    for (const std::string& place : places) {
        std::error_code ignored;
        if (fs::is_regular_file(place, ignored) && ::access(place.c_str(), X_OK) == 0) return success();
        if (is_there(place)) why = EACCES;
    }
    return not_started(path, "cannot start", why);
}

Result<std::unique_ptr<FlushChild>> FlushChild::start(const std::string& program, const std::string& local,
                                                      const std::string& history) {
    const std::string path = find_program(program);
    const auto failed = [&](const char* what, int why) { return not_started(path, what, why); };
    int sockets[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
        return failed("no socket for", errno);
    std::unique_ptr<FlushChild> child(new FlushChild());
    child->socket_ = sockets[0];
    child->owner_ = ::getpid();
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    // A session of its own: a signal from the run's terminal does not end it.
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    posix_spawn_file_actions_adddup2(&actions, sockets[1], STDIN_FILENO);
    std::array<const char*, 4> arguments{kProgram, local.c_str(), history.c_str(), nullptr};
    pid_t pid = -1;
    const int why = ::posix_spawnp(&pid, path.c_str(), &actions, &attributes,
                                   const_cast<char* const*>(arguments.data()), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    ::close(sockets[1]);
    if (why != 0) return failed("cannot start", why);
    child->process_ = pid;
    // The child answers "ok" once it has opened the history's journal, or with an error.
    const auto ready = read_line(child->socket_, child->received_);
    if (!ready) return Error{ErrorCode::io, path + ": ended before it opened the history"};
    if (*ready != "ok") return Error{ErrorCode::io, path + ": " + *ready};
    return child;
}

FlushChild::~FlushChild() {
    if (socket_ >= 0) {
        // shutdown() ends the connection even if a forked process has a copy of the socket; such a
        // process must not end its parent's connection.
        if (owner_ == ::getpid()) ::shutdown(socket_, SHUT_RDWR);
        ::close(socket_);
    }
    // Reaps a child that ends at once because it has nothing left to do; gives up after a second.
    for (int i = 0; process_ > 0 && owner_ == ::getpid() && i < 100; ++i) {
        if (::waitpid(process_, nullptr, WNOHANG) != 0) break;
        ::poll(nullptr, 0, 10);
    }
}

Result<> FlushChild::ask(const std::string& command) {
    if (!send_all(socket_, command + "\n")) return ended();
    const auto answer = read_line(socket_, received_);
    if (!answer) return ended();
    if (*answer == "ok") return success();
    const std::size_t space = answer->find(' ');
    int code = 0;
    std::from_chars(answer->data(), answer->data() + std::min(space, answer->size()), code);
    const bool known = code >= static_cast<int>(ErrorCode::invalid_argument) &&
                       code <= static_cast<int>(ErrorCode::internal);
    return Error{known ? static_cast<ErrorCode>(code) : ErrorCode::io,
                 space == std::string::npos ? *answer : answer->substr(space + 1)};
}

Result<> serve_flushes(FileSystem& system, int socket, const std::string& local, const std::string& history) {
    TWR_TRY(const LocalHistory from, LocalHistory::read(local));
    auto to = HistoryWriter::open(system, history, from.settings, from.rank, from.ranks, Existing::append);
    const Result<> same = to ? check_history_id(local, from.history_id, history, (*to)->id()) : success();
    if (!to || !same) {
        Error why = to ? same.error() : std::move(to).error();
        send_all(socket, why.message + "\n");
        return why;
    }
    send_all(socket, "ok\n");
    std::string received;
    while (const auto command = read_line(socket, received)) {
        const Result<> done = run_command(*command, local, **to);
        std::string answer = "ok";
        if (!done) answer = std::to_string(static_cast<int>(done.error().code)) + " " + done.error().message;
        for (char& c : answer)
            c = c == '\n' ? ' ' : c;
        if (!send_all(socket, answer + "\n")) break;
    }
    TWR_TRY(const LocalHistory rest, LocalHistory::read(local));
    std::optional<Error> failure;
    TWR_CHECK(flush_steps(local, rest.journal, **to, [&](std::int64_t step, const Error& error) {
        if (!failure) failure = Error(error).at("step " + std::to_string(step));
    }));
    if (failure) return std::move(*failure);
    return success();
}

}  // namespace twinrun
