// Collective reads in which each rank has one piece: twinrun reads it before the ranks agree.
#pragma once

namespace program {

// Many such reads of a file that nobody changes, and others between them.
void pieces_that_are_read();
// A rank changes the file by MPI-IO itself, and comes late to the read: all ranks get what it wrote.
void changes_before_a_read();
// A file leaves no descriptor behind, also if it is deleted when it is closed.
void descriptors_of_closed_files();

}  // namespace program
