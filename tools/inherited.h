// What a process has from the one that started it and that would do harm here. Called first, before any thread exists.
#pragma once

namespace kvcachefs {

// Opens what is missing of stdin, stdout and stderr: else the numbers go to the first files that are opened, and what is printed goes
// into them. Resets what says nothing of the user's wishes: blocked signals, an ignored SIGCHLD (the end of a child could not be waited
// for). What goes beyond a limit of the size of files fails with EFBIG instead of ending the process, and that limit and the one of
// processor time are raised as far as may be.
void mend_what_is_inherited();

}  // namespace kvcachefs
