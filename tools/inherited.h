// State that a process inherits and that would do harm here. Call first, before any thread exists.
#pragma once

namespace kvcachefs {

// Opens those of stdin, stdout and stderr that are closed: otherwise the first opened files get their numbers, and output is written
// into these files. Resets inherited state that is no wish of the user: blocked signals, and an ignored SIGCHLD (with it the end of a child
// could not be waited for). Makes a write beyond the file size limit fail with EFBIG instead of ending the process. Raises that limit and the
// limit of processor time as far as may be.
void mend_what_is_inherited();

}  // namespace kvcachefs
