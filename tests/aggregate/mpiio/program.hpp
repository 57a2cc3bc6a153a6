// What the scenarios of the program have in common: errors, files in pairs, and what must be equal.
#pragma once

#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "random_types.hpp"
#include "random_views.hpp"

namespace program {

using random_types::end_of;
using random_types::extent_of;
using random_types::View;

inline int me = 0;
inline int ranks = 1;
inline std::string doing;
inline std::string folder;

[[noreturn]] inline void stop(const std::string& what) {
    std::fprintf(stderr, "views.cpp: rank %d: %s (%s)\n", me, what.c_str(), doing.c_str());
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::abort();
}

inline void expect(bool condition, const std::string& what) {
    if (!condition) stop(what);
}

inline std::string text_of(int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return "success";
    MPI_Error_string(code, text, &length);
    return text;
}

inline void well(int code, const char* what) {
    if (code != MPI_SUCCESS) stop(std::string(what) + ": " + text_of(code));
}

inline std::vector<unsigned char> contents(const std::string& path) {
    std::vector<unsigned char> bytes;
    std::FILE* const file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) stop("cannot open " + path);
    unsigned char buffer[65536];
    while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, file))
        bytes.insert(bytes.end(), buffer, buffer + got);
    std::fclose(file);
    return bytes;
}

inline MPI_File open_file(const std::string& path, int amode, bool plain, const char* more = nullptr,
                          const char* value = nullptr) {
    MPI_Info info = MPI_INFO_NULL;
    MPI_Info_create(&info);
    if (plain) MPI_Info_set(info, "twinrun_enable", "false");
    if (more != nullptr) MPI_Info_set(info, more, value);
    MPI_File file = MPI_FILE_NULL;
    well(MPI_File_open(MPI_COMM_WORLD, path.c_str(), amode, info, &file), "MPI_File_open");
    MPI_Info_free(&info);
    return file;
}

// ---- pairs of files ----

struct Pair {
    MPI_File ours = MPI_FILE_NULL;
    MPI_File plain = MPI_FILE_NULL;
};

// What both files say of themselves.
inline void same_positions(const Pair& files) {
    MPI_Offset here[3] = {0, 0, 0};
    MPI_Offset there[3] = {0, 0, 0};
    MPI_File_get_position(files.ours, &here[0]);
    MPI_File_get_position(files.plain, &there[0]);
    MPI_File_get_byte_offset(files.ours, here[0], &here[1]);
    MPI_File_get_byte_offset(files.plain, there[0], &there[1]);
    expect(here[0] == there[0] && here[1] == there[1],
           "the file pointer is at " + std::to_string(here[0]) + " instead of " + std::to_string(there[0]));
}

inline void same_status(MPI_Status& ours, MPI_Status& plain, MPI_Datatype type) {
    int here[2] = {-1, -1};
    int there[2] = {-1, -1};
    MPI_Get_count(&ours, type, &here[0]);
    MPI_Get_count(&plain, type, &there[0]);
    MPI_Get_elements(&ours, type, &here[1]);
    MPI_Get_elements(&plain, type, &there[1]);
    expect(here[0] == there[0],
           "MPI_Get_count: " + std::to_string(here[0]) + " instead of " + std::to_string(there[0]));
    expect(here[1] == there[1],
           "MPI_Get_elements: " + std::to_string(here[1]) + " instead of " + std::to_string(there[1]));
}

// mask: a file that says which bytes count, from `first` on; those before all count. Empty: all.
inline void compare_files(const std::string& truth, const std::string& path, const std::string& mask,
                          std::size_t first = 0) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        const auto there = contents(truth);
        const auto here = contents(path);
        expect(here.size() == there.size(), path + ": " + std::to_string(here.size()) + " bytes instead of " +
                                                std::to_string(there.size()));
        const auto written = mask.empty() ? std::vector<unsigned char>() : contents(mask);
        for (std::size_t at = 0; at < here.size(); ++at) {
            const bool counts = mask.empty() || at < first || (at < written.size() && written[at] != 0);
            if (counts && here[at] != there[at])
                stop(path + ": the byte at " + std::to_string(at) + " is wrong");
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

// The same write by MPI_Pack, MPI_Unpack and pwrite alone. at: in etypes. mask: a file that has a 1 for each byte that was written.
inline void write_truth(int file, int mask_file, const View& view, MPI_Offset at, const void* buffer,
                        int count, MPI_Datatype type) {
    MPI_Count size = 0;
    MPI_Count item = 0;
    MPI_Count tile = 0;
    MPI_Type_size_x(type, &size);
    MPI_Type_size_x(view.etype, &item);
    MPI_Type_size_x(view.filetype, &tile);
    const int bytes = static_cast<int>(size) * count;
    if (bytes == 0) return;
    const int before = static_cast<int>(at * item);
    const int tiles = static_cast<int>((before + bytes + tile - 1) / tile);
    std::vector<unsigned char> data(static_cast<std::size_t>(tiles * tile), 0);
    std::vector<unsigned char> mask(data.size(), 0);
    int position = before;
    MPI_Pack(buffer, count, type, data.data(), static_cast<int>(data.size()), &position, MPI_COMM_WORLD);
    std::fill(mask.begin() + before, mask.begin() + before + bytes, static_cast<unsigned char>(1));
    const auto length =
        static_cast<std::size_t>(extent_of(view.filetype) * (tiles - 1) + end_of(view.filetype));
    std::vector<unsigned char> image(length, 0);
    std::vector<unsigned char> covered(length, 0);
    position = 0;
    MPI_Unpack(data.data(), static_cast<int>(data.size()), &position, image.data(), tiles, view.filetype,
               MPI_COMM_WORLD);
    position = 0;
    MPI_Unpack(mask.data(), static_cast<int>(mask.size()), &position, covered.data(), tiles, view.filetype,
               MPI_COMM_WORLD);
    for (std::size_t begin = 0; begin < length;) {
        std::size_t end = begin;
        while (end < length && covered[end] == covered[begin])
            ++end;
        const off_t place = static_cast<off_t>(view.displacement) + static_cast<off_t>(begin);
        const auto wanted = static_cast<ssize_t>(end - begin);
        if (covered[begin] != 0 && (::pwrite(file, &image[begin], end - begin, place) != wanted ||
                                    ::pwrite(mask_file, &covered[begin], end - begin, place) != wanted))
            stop("pwrite");
        begin = end;
    }
}

// The same read by pread, MPI_Pack and MPI_Unpack alone. False: the view goes beyond the end of the file.
inline bool read_truth(int file, const View& view, MPI_Offset at, void* buffer, int count,
                       MPI_Datatype type) {
    MPI_Count size = 0;
    MPI_Count item = 0;
    MPI_Count tile = 0;
    MPI_Type_size_x(type, &size);
    MPI_Type_size_x(view.etype, &item);
    MPI_Type_size_x(view.filetype, &tile);
    const int bytes = static_cast<int>(size) * count;
    if (bytes == 0) return true;
    const int before = static_cast<int>(at * item);
    const int tiles = static_cast<int>((before + bytes + tile - 1) / tile);
    std::vector<unsigned char> image(
        static_cast<std::size_t>(extent_of(view.filetype) * (tiles - 1) + end_of(view.filetype)));
    const auto wanted = static_cast<ssize_t>(image.size());
    if (::pread(file, image.data(), image.size(), static_cast<off_t>(view.displacement)) != wanted)
        return false;
    std::vector<unsigned char> data(static_cast<std::size_t>(tiles * tile));
    int position = 0;
    MPI_Pack(image.data(), tiles, view.filetype, data.data(), static_cast<int>(data.size()), &position,
             MPI_COMM_WORLD);
    position = before;
    MPI_Unpack(data.data(), static_cast<int>(data.size()), &position, buffer, count, type, MPI_COMM_WORLD);
    return true;
}

// Bytes that a file has before it is read. A view may go beyond: what it reads there was never written.
inline constexpr std::size_t kSize = std::size_t{1} << 22;

inline constexpr int kChange = MPI_MODE_CREATE | MPI_MODE_RDWR;

inline void remove_files() {
    MPI_Barrier(MPI_COMM_WORLD);
    for (const char* const name : {"/ours", "/plain"}) {
        if (me == 0) ::unlink((folder + name).c_str());
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

inline Pair open_pair(int amode) {
    return {open_file(folder + "/ours", amode, false), open_file(folder + "/plain", amode, true)};
}

inline void close_pair(Pair& files) {
    well(MPI_File_close(&files.ours), "MPI_File_close");
    well(MPI_File_close(&files.plain), "MPI_File_close");
}

inline std::vector<int> numbers(int count, int salt) {
    std::vector<int> all;
    for (int i = 0; i < count; ++i)
        all.push_back(salt * 1000003 + me * 10007 + i);
    return all;
}

}  // namespace program
