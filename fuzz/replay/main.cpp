// Runs a fuzz target without libFuzzer, so that any compiler can: every saved input, then inputs
// made from them by a fixed generator. Always the same inputs in the same order.
//
//   fuzz_<name> [--target=NAME] [--runs=N] [FILE or FOLDER]...
//
// When an input brings the target down, it is saved as crash-<target> in the working folder.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// Defined by the sanitizers' runtime only.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Bytes = std::vector<std::uint8_t>;

// What the signal handler needs: plain pointers, set before each run.
const std::uint8_t* current_data = nullptr;
std::size_t current_size = 0;
char crash_name[256] = "crash-input";

void save_current() {
    const int file = ::open(crash_name, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0) return;
    if (::write(file, current_data, current_size) == static_cast<ssize_t>(current_size)) {
        static constexpr std::string_view kSaved = "\nthe input that brought the target down is saved as ";
        [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, kSaved.data(), kSaved.size());
        written = ::write(STDERR_FILENO, crash_name, std::string_view(crash_name).size());
        written = ::write(STDERR_FILENO, "\n", 1);
    }
    ::close(file);
}

void on_signal(int signal) {
    save_current();
    ::signal(signal, SIG_DFL);
    ::raise(signal);
}

void run(const Bytes& input) {
    // A copy of exactly this size, so that a sanitizer sees a read past the end.
    const Bytes exact(input.begin(), input.end());
    current_data = exact.data();
    current_size = exact.size();
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
   public:
    std::uint64_t next() {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
        return z ^ (z >> 31);
    }
    std::size_t below(std::size_t bound) { return bound == 0 ? 0 : static_cast<std::size_t>(next() % bound); }

   private:
    std::uint64_t state_ = 0;
};

Bytes random_bytes(Random& random) {
    // Mostly short: decoders decide most in their first bytes.
    Bytes bytes(random.below(std::size_t{1} << (1 + random.below(12))));
    for (auto& byte : bytes)
        byte = static_cast<std::uint8_t>(random.next());
    return bytes;
}

Bytes mutated(Bytes bytes, Random& random) {
    const std::size_t changes = 1 + random.below(4);
    for (std::size_t i = 0; i < changes; ++i) {
        const std::size_t at = random.below(bytes.size());
        switch (random.below(6)) {
            case 0:  // flip a bit
                if (!bytes.empty())
                    bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ (1U << random.below(8)));
                break;
            case 1:  // cut the end off
                bytes.resize(at);
                break;
            case 2:  // an extreme byte
                if (!bytes.empty()) bytes[at] = random.below(2) == 0 ? 0 : 0xff;
                break;
            case 3:  // a run of extreme bytes: lengths and offsets are up to 8 bytes wide
                for (std::size_t j = at; j < std::min(at + 8, bytes.size()); ++j)
                    bytes[j] = 0xff;
                break;
            case 4: {  // more bytes at the end
                const Bytes tail = random_bytes(random);
                bytes.insert(bytes.end(), tail.begin(), tail.end());
                break;
            }
            default:  // take a byte out
                if (!bytes.empty()) bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
                break;
        }
    }
    return bytes;
}

bool read_file(const std::filesystem::path& path, Bytes& into) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return false;
    into.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    std::string target = "input";
    unsigned long runs = 2000;
    std::vector<std::filesystem::path> files;
    for (int i = 1; i < argc; ++i) {
        const std::string_view argument = argv[i];
        if (argument.starts_with("--target=")) {
            target = argument.substr(9);
        } else if (argument.starts_with("--runs=")) {
            runs = std::strtoul(argv[i] + 7, nullptr, 10);
        } else if (std::error_code error; std::filesystem::is_directory(argument, error)) {
            for (const auto& entry : std::filesystem::directory_iterator(argument)) {
                if (entry.is_regular_file()) files.push_back(entry.path());
            }
        } else if (std::filesystem::is_regular_file(argument, error)) {
            files.emplace_back(argument);
        }  // else: a target without saved inputs has no folder
    }
    std::sort(files.begin(), files.end());

    std::snprintf(crash_name, sizeof crash_name, "crash-%s", target.c_str());
    if (__sanitizer_set_death_callback != nullptr) {
        __sanitizer_set_death_callback(save_current);
    } else {
        for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE})
            std::signal(signal, on_signal);
    }

    std::vector<Bytes> saved;
    for (const auto& path : files) {
        Bytes bytes;
        if (!read_file(path, bytes)) {
            std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
            return 1;
        }
        run(bytes);
        saved.push_back(std::move(bytes));
    }

    Random random;
    run({});
    for (unsigned long i = 0; i < runs; ++i) {
        const bool fresh = saved.empty() || random.below(4) == 0;
        run(fresh ? random_bytes(random) : mutated(saved[random.below(saved.size())], random));
    }
    std::printf("%s: %zu saved and %lu made inputs ran\n", target.c_str(), saved.size(), runs + 1);
    return 0;
}
