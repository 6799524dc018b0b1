#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/files/damage.h"

namespace demi::data {

/// Pictures as files in a folder for each class: FOLDER/class/name.jpg, also deeper below the
/// class.
struct PictureFolder {
  std::vector<std::filesystem::path> files;        // by class, then by name
  at::Tensor labels;                               // (N) int64, in [0, classes.size())
  std::vector<std::string> classes;                // the folders' names, alphabetically
  std::string name;                                // of the folder
  std::vector<std::filesystem::path> others = {};  // files that are not read, hidden ones aside
};

/// A note on the files of a folder that are not read; empty if there are none.
DEMI_API std::string note_on_others(const PictureFolder& folder);

/// Whether the file is a picture by its name, in any letter case: .jpg, .jpeg, .png, and not
/// hidden.
DEMI_API bool is_picture(const std::filesystem::path& path);

/// Lists the .jpg, .jpeg and .png files (in any case) of a folder; nothing is decoded. Hidden files
/// and folders are ignored, other endings are in `others`. With `classes` the labels follow these,
/// and a folder of another name is refused. Throws DataError: no such folder, no class, a class
/// without a picture, a class whose name is not UTF-8, a link that leads to a folder above it. With
/// another `report`, files that it is called for are left out.
DEMI_API PictureFolder read_picture_folder(
    const std::filesystem::path& folder, const std::vector<std::string>& classes = {},
    const files::DamageReport& report = files::report_damage);

/// The parts of a data set of pictures.
struct PictureFolders {
  PictureFolder train;                // what is trained on
  std::optional<PictureFolder> test;  // none: there is nothing to test on
};

/// FOLDER/train and FOLDER/val (or valid, validation, test); if there is no FOLDER/train, FOLDER
/// itself holds the classes and there is nothing to test on. Throws as read_picture_folder, for one
/// class alone, and for folders named as parts where they would be classes, or nothing: Training,
/// Testing, test beside classes.
DEMI_API PictureFolders find_picture_folders(
    const std::filesystem::path& folder, const files::DamageReport& report = files::report_damage);

/// The test pictures alone: of FOLDER/val (or valid, validation, test), whose classes are among
/// `classes`; the training pictures need not be there. None if FOLDER has no such folder. Throws as
/// read_picture_folder, if there is no FOLDER, and if the classes are beside that folder.
DEMI_API std::optional<PictureFolder> find_test_pictures(const std::filesystem::path& folder,
                                                         const std::vector<std::string>& classes);

}  // namespace demi::data
