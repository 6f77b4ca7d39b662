// The subcommands of `kvcachefs` that this directory itself implements. Each registers its CLI11 node under `parent`,
// which owns it.
#pragma once

#include "tools/load/subcommand.h"

namespace kvcachefs {

Subcommand add_mount_command(CLI::App& parent);
Subcommand add_umount_command(CLI::App& parent);
Subcommand add_status_command(CLI::App& parent);
Subcommand add_info_command(CLI::App& parent);
Subcommand add_fsck_command(CLI::App& parent);
Subcommand add_rebuild_command(CLI::App& parent);
Subcommand add_gc_command(CLI::App& parent);
Subcommand add_check_volume_command(CLI::App& parent);

}  // namespace kvcachefs
