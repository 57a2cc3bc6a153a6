// What the ranks of a job do: main() calls one of these, on every rank.
#pragma once

#include <cstdint>
#include <string>

namespace aggregate_ranks {

// Random declarations and options: the bytes are those of POSIX writes, and come back.
void properties(const std::string& folder, std::uint64_t seed, int rounds);
void blocks(const std::string& folder, std::uint64_t seed, int rounds);
void overlaps();
void invalid(const std::string& folder);
// Storage fails on one rank, at one call after the other: it says so, the others say who, the old file stays, and the next write is
// well again.
void storage(const std::string& folder, const std::string& function, const std::string& backend, bool sync,
             bool direct);
// Somebody takes the partial file's name away while it is written: what is there then stays, and what was at the path.
void stolen(const std::string& folder, bool sync);
// The path is a symbolic link: a write replaces it, an update goes to the file that it names; nothing is made at a place that only a
// link tells of.
void links(const std::string& folder, const std::string& backend);
// The last rank is killed on its way, or stops for good: then the others come out of the call with an error, and end what stopped. What
// was there stays.
void die(const std::string& folder, const std::string& how, const std::string& where, const std::string& way);
// What die() wrote first, by another job.
void again(const std::string& folder);
// One rank has no memory for one thing, at one place after the other: it says so, the others say who at once, not when the time is
// up; the aggregate works on, or all say that it does not.
void memory(const std::string& folder, const std::string& what);
// Sizes beyond 32 bits. Zeros of memory that takes no room are noted where they would be written, and nothing is.
void large(const std::string& folder, bool direct);
// Layouts of records, and what the report says.
void records(const std::string& folder);
// How members reach their aggregators: partitions with no rank in common, of ranks that lie on one node or on several, and others.
// Nodes of MPICH's, faked, are ranks in turns or in blocks: of the two orders one has partitions of several nodes.
void members(const std::string& folder, int nodes_wanted);
// A host as hwloc would see it, faked: the report's partitions and aggregators are those of the serial functions on its cores.
void places(const std::string& folder);
// Sub-files of several writes, by more and fewer ranks: a reader gets those that belong together, or an error; what twinrun cannot know for
// its own stays as it is.
void sub_files(const std::string& folder);
// Parts of a whole file in several files: any number of ranks reads them in any cutting; what is refused. The
// whole and the parts of each round stay, for `twinrun aggregate join`.
void wholes(const std::string& folder, std::uint64_t seed, int rounds);
// Writes in the background: the bytes are those that the arrays had when the call returned; other calls wait for them, and errors
// come to all ranks. by: "thread" or "caller".
void background(const std::string& folder, std::uint64_t seed, int rounds, const std::string& by);
// Elections that a file keeps: taken by a declaration like an earlier one, and what that file may not be.
void plans(const std::string& folder);
// Settings as text: their names are those of the document, and they do what the structure does.
void settings(const std::string& folder);
void stripes(const std::string& folder);
// The figures of a transfer are those of the report.
void reports(const std::string& folder);
// After MPI_Finalize.
void finalised();

}  // namespace aggregate_ranks
