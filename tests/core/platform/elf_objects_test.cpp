#include "platform/elf_objects.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

namespace twinrun {
namespace {

namespace fs = std::filesystem;

std::string program() { return fs::canonical("/proc/self/exe").string(); }

std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(ElfObjects, TheProgramAndItsLibraries) {
    const auto objects = loaded_objects();
    ASSERT_GT(objects.size(), 1U);
    EXPECT_EQ(objects.front().path, program());
    EXPECT_TRUE(std::any_of(objects.begin(), objects.end(), [](const LoadedObject& o) {
        return fs::path(o.path).filename().string().starts_with("libc.so");
    }));
    for (const LoadedObject& o : objects) {
        EXPECT_FALSE(o.path.empty());
        EXPECT_EQ(o.build_id.size() % 2, 0U);
        EXPECT_EQ(o.build_id.find_first_not_of("0123456789abcdef"), std::string::npos) << o.path;
        if (o.build_id.empty() || o.path.front() != '/' || !fs::exists(o.path)) continue;
        // The bytes stand in the file.
        std::string bytes;
        for (std::size_t i = 0; i < o.build_id.size(); i += 2)
            bytes += static_cast<char>(std::stoi(o.build_id.substr(i, 2), nullptr, 16));
        EXPECT_NE(content(o.path).find(bytes), std::string::npos) << o.path;
    }
}

// Links to folders and to files are followed, as the program itself is.
TEST(ElfObjects, PathsAreThoseOfTheFiles) {
    std::string library;
    for (const LoadedObject& o : loaded_objects()) {
        if (o.path.front() == '/' && fs::exists(o.path)) {
            EXPECT_EQ(o.path, fs::canonical(o.path).string());
        }
        if (fs::path(o.path).filename().string().starts_with("libm.so")) library = o.path;
    }
    ASSERT_FALSE(library.empty());
    const fs::path folder =
        fs::canonical(fs::temp_directory_path()) / ("elf-objects-" + std::to_string(getpid()));
    const fs::path file = folder / "real" / "other.so";
    fs::create_directories(file.parent_path());
    fs::copy_file(library, file);
    fs::copy_file(library, folder / "real" / "third.so");
    fs::create_directory_symlink("real", folder / "link");
    fs::create_symlink("other.so", folder / "real" / "named.so");
    for (const auto& [opened, expected] :
         {std::pair{folder / "link" / "named.so", file},
          std::pair{folder / "link" / "third.so", folder / "real" / "third.so"}}) {
        void* handle = dlopen(opened.c_str(), RTLD_NOW | RTLD_LOCAL);
        ASSERT_NE(handle, nullptr) << dlerror();
        const auto objects = loaded_objects();
        EXPECT_TRUE(std::any_of(objects.begin(), objects.end(), [&](const LoadedObject& o) {
            return o.path == expected.string();
        })) << opened;
        EXPECT_FALSE(std::any_of(objects.begin(), objects.end(),
                                 [&](const LoadedObject& o) { return o.path == opened.string(); }));
        dlclose(handle);
    }
    fs::remove_all(folder);
}

TEST(ElfObjects, CompilersOfTheProgram) {
    const ElfProducers made = elf_producers(program());
#if defined(__clang__)
    EXPECT_NE(made.compilers.find("clang"), std::string::npos) << made.compilers;
#else
    EXPECT_NE(made.compilers.find("GCC: "), std::string::npos) << made.compilers;
#endif
}

TEST(ElfObjects, FilesThatAreNone) {
    const auto nothing = [](const std::string& path) {
        const ElfProducers made = elf_producers(path);
        return made.compilers.empty() && made.switches.empty();
    };
    EXPECT_TRUE(nothing("/nonexistent"));
    EXPECT_TRUE(nothing("/"));
    EXPECT_TRUE(nothing("/dev/null"));
    EXPECT_TRUE(nothing(std::string(TWINRUN_SOURCE_DIR) + "/CMakeLists.txt"));
}

TEST(ElfObjects, DamagedFiles) {
    const std::string path =
        (fs::temp_directory_path() / ("twinrun_elf_" + std::to_string(getpid()))).string();
    const std::string whole = content(program());
    const auto write = [&](const std::string& bytes) {
        std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    };
    // The header, and where it says the sections are: every byte there, each to several values.
    std::uint64_t sections = 0;
    whole.copy(reinterpret_cast<char*>(&sections), sizeof sections, 40);  // e_shoff of a 64-bit file
    std::string bytes = whole;
    write(bytes);
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    const auto poke = [&](std::uint64_t at, char value) {
        file.seekp(static_cast<std::streamoff>(at));
        file.put(value);
        file.flush();
    };
    const auto damage = [&](std::uint64_t from, std::uint64_t to) {
        for (std::uint64_t at = from; at < std::min<std::uint64_t>(to, whole.size()); ++at) {
            for (const char value : {'\0', '\x7f', '\xff'}) {
                poke(at, value);
                (void)elf_producers(
                    path);  // whatever it says, it reads nothing outside: the sanitizers watch
            }
            poke(at, whole[at]);
        }
    };
    damage(0, 64);
    damage(sections, sections + 64ULL * 48);
    const ElfProducers intact = elf_producers(path);
    EXPECT_EQ(intact.compilers, elf_producers(program()).compilers);
    file.close();
    for (const std::uint64_t keep :
         {0ULL, 1ULL, 63ULL, 64ULL, 4096ULL, static_cast<unsigned long long>(sections)}) {
        write(whole.substr(0, keep));
        EXPECT_TRUE(elf_producers(path).compilers.empty()) << keep;
    }
    fs::remove(path);
}

}  // namespace
}  // namespace twinrun
